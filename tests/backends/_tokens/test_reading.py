import pytest
import transformers
from helpers.tiny_models import CAUSAL, CORPUS, MASKED, ask

from pbsdk.backend import MaskedQuery, Part
from pbsdk.errors import QueryRefused
from pbsdk_backends._tokens.reading import Reader, surface_words

TEXTS = [
    *CORPUS,
    "",
    " leading and trailing ",
    "two  spaces,\n\na new line",
    "ends with a stop.",
    "don't stop (really) 3.5% #hash",
    "🙂日本語",
]
BORDERS = [(" It was ", "."), ("It was", "."), (", so ", " indeed."), ("", ""), (" ", " News."), (". The\n", "\nend")]
CONTROLS = ["</s>", "<mask>", "<s>", "[SEP]", "[MASK]", "<|im_start|>", "<unk>", "<pad>", "[UNK]"]


def reader_for(folder, family, max_length=96):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, Reader(tokenizer, causal=family in CAUSAL, max_length=max_length)


@pytest.mark.parametrize("family", MASKED)
def test_ordinary_texts_are_read_as_the_tokenizer_reads_them(folder_of, family):
    tokenizer, reader = reader_for(folder_of(family), family, 10_000)
    for text in TEXTS:
        for before, after in BORDERS:
            query = ask(text, before, after)
            reading = reader.read(query)
            assert reading.ids == tokenizer(query.text(tokenizer.mask_token))["input_ids"]
            assert reading.ids[reading.at] == tokenizer.mask_token_id
            assert reading.cut == 0


@pytest.mark.parametrize("family", CAUSAL)
def test_a_causal_model_reads_up_to_the_mask_without_the_space(folder_of, family):
    tokenizer, reader = reader_for(folder_of(family), family, 10_000)
    for text in TEXTS[:-1]:
        query = ask(text, " It was ", " and more.")
        reading = reader.read(query)
        assert reading.ids == tokenizer(text + " It was")["input_ids"]
        assert reading.at == len(reading.ids) - 1


@pytest.mark.parametrize("family", [*MASKED, *CAUSAL])
@pytest.mark.parametrize("control", CONTROLS)
def test_control_tokens_in_a_text_are_plain_text(folder_of, family, control):
    tokenizer, reader = reader_for(folder_of(family), family)
    quiet = reader.read(ask("a b"))
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for text in (f"a {control} b", f"a{control}b", control, f"{control} b"):
        ids = reader.read(ask(text)).ids
        assert [i for i in ids if i in special] == [i for i in quiet.ids if i in special]
        assert len(ids) > len(reader.read(ask("")).ids)


@pytest.mark.parametrize("family", MASKED)
def test_long_texts_lose_their_end_and_nothing_else(folder_of, family):
    tokenizer, reader = reader_for(folder_of(family), family, 40)
    _, roomy = reader_for(folder_of(family), family, 10_000)
    query = ask("The weather is fine today. " * 20, " In short it was ", " indeed.")
    cut, whole = reader.read(query), roomy.read(query)
    assert len(cut.ids) == 40
    assert cut.cut == len(whole.ids) - 40
    tail = len(whole.ids) - whole.at
    assert cut.ids[cut.at] == tokenizer.mask_token_id
    assert cut.ids[-tail:] == whole.ids[-tail:]
    prompt = len(roomy.read(ask("", " In short it was ", " indeed.")).ids) - 1
    assert cut.ids[: 40 - prompt] == whole.ids[: 40 - prompt]


@pytest.mark.parametrize(("first", "second"), [(60, 5), (5, 60), (60, 60)])
def test_of_a_pair_the_longer_text_is_cut_first(folder_of, first, second):
    tokenizer, reader = reader_for(folder_of("bert"), "bert", 40)
    sea, boat = (tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("sea", "rain"))
    ids = reader.read(ask("sea " * first, " so ", " and", pair="rain " * second)).ids
    left, right = ids.count(sea[0]), ids.count(boat[0])
    assert tokenizer.mask_token_id in ids
    assert len(ids) == 40
    if first == second:
        assert abs(left * len(sea) - right * len(boat)) <= max(len(sea), len(boat))
    else:
        assert min(left, right) == 5
        assert max(left, right) < 60


def test_the_bytes_of_one_character_are_cut_together(folder_of):
    tokenizer, _ = reader_for(folder_of("roberta"), "roberta")
    for length in range(12, 24):
        _, reader = reader_for(folder_of("roberta"), "roberta", length)
        assert "\ufffd" not in tokenizer.decode(reader.read(ask("𝄞" * 12)).ids)


def test_a_prompt_that_does_not_fit_is_refused(folder_of):
    _, reader = reader_for(folder_of("roberta"), "roberta", 10)
    with pytest.raises(QueryRefused, match=r"prompt alone has \d+ tokens and the model reads at most 10"):
        reader.read(ask("text", " a prompt with far too many words for this model " * 3))


@pytest.mark.parametrize(("text", "complaint"), [("a \ufdd0<mask> b", "U\\+FDD0"), ("a \ud83d", "half of a character")])
def test_characters_that_no_tokenizer_reads_are_refused(folder_of, text, complaint):
    _, reader = reader_for(folder_of("roberta"), "roberta")
    with pytest.raises(QueryRefused, match=complaint):
        reader.read(ask(text))


def test_a_causal_model_with_nothing_to_read_starts_at_its_first_token(folder_of):
    tokenizer, reader = reader_for(folder_of("gpt2"), "gpt2")
    assert reader.read(MaskedQuery((Part("mask"), Part("prompt", " x")), "e", "p")).ids == [tokenizer.bos_token_id]


def test_a_closing_token_is_not_read_by_a_causal_model(folder_of):
    tokenizer, _ = reader_for(folder_of("roberta"), "roberta")
    ids = Reader(tokenizer, causal=True, max_length=96).read(ask("The sea")).ids
    assert ids == tokenizer("The sea It was")["input_ids"][:-1]


@pytest.mark.parametrize(
    ("family", "mark"), [("roberta", "Ġ"), ("albert", "▁"), ("gpt2", "Ġ"), ("llama", "▁"), ("bert", "##")]
)
def test_the_vocabulary_holds_words_as_they_stand_in_a_text(folder_of, backend_of, family, mark):
    tokenizer, _ = reader_for(folder_of(family), family)
    vocabulary = backend_of(family).vocabulary
    marked = 0
    for token, raw in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))):
        bare = raw.removeprefix(mark)
        if not (bare.isascii() and bare.isalpha()):
            continue
        begins = raw.startswith(mark) != (mark == "##")
        assert vocabulary[token] == (" " + bare if begins else bare)
        marked += begins
    assert marked > 10


def test_columns_beyond_the_tokenizer_are_unused(folder_of):
    tokenizer, _ = reader_for(folder_of("bert"), "bert")
    words = surface_words(tokenizer, len(tokenizer) + 3)
    assert words[-3:] == ["<unused>"] * 3
    assert words[tokenizer.mask_token_id] == "[MASK]"
