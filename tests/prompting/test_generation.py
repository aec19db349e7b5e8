"""Generated prompts: the search against enumeration, the writers against their models, the pool's file."""

import itertools
import json
import math
import os
import subprocess
import sys
import types
from importlib import metadata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbsdk.backend import Abilities, MaskDistribution, MaskedLMBackend, ModelIdentity, Phase, Vocabulary, digest
from pbsdk.errors import InputError, MissingExtra, ModelUnusable, SetupError
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.prompting.causal_writer import CausalWriter
from pbsdk.prompting.generation import beam_search, distinct, generate_pool, open_writer, write_pool
from pbsdk.queries.pools import PromptPool, load_pool, read_pool
from pbsdk.testing import FakeBackend
from pbsdk.version import __version__

# The search


def chain(seed, size):
    """A model of sequences: the likelihood of each next token, or of ending, after any prefix."""

    def extend(prefixes):
        draws = [np.random.default_rng([seed, 7, *prefix]).integers(1, 4, size + 1) for prefix in prefixes]
        logs = np.log([draw / draw.sum() for draw in draws])  # few distinct values, so that there are ties
        return logs[:, :size], logs[:, size]

    return extend


def enumerated(extend, size, max_tokens):
    found = []
    for length in range(max_tokens + 1):
        for sequence in itertools.product(range(size), repeat=length):
            steps = [extend([sequence[:at]])[0][0, token] for at, token in enumerate(sequence)]
            found.append((sequence, math.fsum([*steps, extend([sequence])[1][0]])))
    return found


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(0, 4))
def test_an_exhaustive_beam_finds_every_sequence_in_order(seed, size, max_tokens):
    extend = chain(seed, size)
    everything = dict(enumerated(extend, size, max_tokens))
    found = beam_search(extend, beam=10_000, max_tokens=max_tokens)
    assert {sequence for sequence, _ in found} == set(everything)
    assert all(math.isclose(score, everything[sequence], abs_tol=1e-9) for sequence, score in found)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 4), st.integers(1, 6))
def test_a_narrow_beam_never_beats_enumeration(seed, size, max_tokens, beam):
    extend = chain(seed, size)
    everything = dict(enumerated(extend, size, max_tokens))
    best = sorted(everything.values(), reverse=True)
    found = beam_search(extend, beam=beam, max_tokens=max_tokens)
    assert len(found) <= beam
    for place, (sequence, score) in enumerate(found):
        assert math.isclose(score, everything[sequence], abs_tol=1e-9)
        assert score <= best[place] + 1e-9


def test_the_search_asks_for_no_more_prefixes_than_the_beam():
    asked = []

    def extend(prefixes):
        asked.append(len(prefixes))
        return chain(3, 5)(prefixes)

    beam_search(extend, beam=4, max_tokens=6)
    assert asked[0] == 1
    assert max(asked) <= 4


def test_ties_go_to_the_lower_tokens():
    def level(prefixes):
        return np.full((len(prefixes), 3), -1.0), np.full(len(prefixes), -1.0)

    assert [prefix for prefix, _ in beam_search(level, beam=3, max_tokens=1)] == [(), (0,), (1,)]


def test_what_is_not_allowed_is_not_found():
    def only_one_way(prefixes):
        following = np.full((len(prefixes), 2), -np.inf)
        following[:, 1] = -1.0
        return following, np.array([-1.0 if len(prefix) == 2 else -np.inf for prefix in prefixes])

    assert beam_search(only_one_way, beam=5, max_tokens=4) == [((1, 1), -3.0)]


# Near-duplicates


@pytest.mark.parametrize(
    "other",
    [
        "<input> it was <mask>.",
        "<input>  It  was <mask>.",
        "<input> It was <mask>!",
        "<input>, It was: <mask>",
        "<input>\nIt was <mask>",
    ],
)
def test_other_case_space_or_punctuation_is_a_near_duplicate(other):
    assert distinct(["<input> It was <mask>.", other]) == ["<input> It was <mask>."]


@pytest.mark.parametrize(
    "other",
    [
        "<input> It is <mask>.",
        "<input> <mask> It was.",
        "<input> Was it <mask>?",
        "<input> It was <mask> film.",
    ],
)
def test_other_words_or_sides_are_no_near_duplicates(other):
    prompts = ["<input> It was <mask>.", other]
    assert distinct(prompts, overlap=1.1) == prompts


def test_long_prompts_that_share_most_words_are_near_duplicates():
    prompts = ["<input> This entry was posted in <mask>.", "<input> This entry was posted in <mask> today."]
    assert distinct(prompts) == prompts[:1]
    assert distinct(prompts, overlap=0.9) == prompts


def test_pair_prompts_of_punctuation_alone_are_told_apart():
    prompts = ["<input>. <mask>, <input2>", "<input>? <mask>, <input2>", "<input>. <mask>; <input2>"]
    assert distinct([*prompts, "<input> . <mask>, <input2>"]) == prompts


# A causal writer over any backend


class TableBackend(MaskedLMBackend):
    """A causal model over a few tokens, one of them said in two pieces."""

    words = (" it", " was", " a", ".", " good", " ba", "d", "<s>", "\n", "2")

    def __init__(self):
        self.identity = ModelIdentity("table", {"weights": "0"})
        self.vocabulary = Vocabulary(self.words)
        self.abilities = Abilities(mask="last", batch_size=7)
        self.phases = []

    def logprobs(self, text):
        logits = np.random.default_rng(int(digest(text.rstrip(" "))[:8], 16)).normal(size=len(self.words))
        return logits - np.log(np.exp(logits).sum())

    def fill(self, queries, tokens=None):
        assert len(queries) <= 7
        self.phases += [query.phase for query in queries]
        texts = ["".join(part.text for part in query.before_mask()) for query in queries]
        return [MaskDistribution.from_logprobs(self.logprobs(text)) for text in texts]


TEXTS, LABELS = ["fine day", "poor soup", "nice one"], ["good", "bad", "good"]


@pytest.mark.parametrize("pairs", [False, True])
def test_causal_prompts_are_scored_by_their_summed_likelihood(pairs):
    backend = TableBackend()
    writer = CausalWriter(backend)
    examples = [(text, text[::-1]) if pairs else (text,) for text in TEXTS]
    writer.open(examples, LABELS)
    found = dict(beam_search(writer.extend, beam=10_000, max_tokens=2))
    fit = range(7)  # no control token, no line break, no digit
    expected = [sequence for length in (1, 2) for sequence in itertools.product(fit, repeat=length)]
    assert set(found) == set(expected)
    pieces = {"good": [4], "bad": [5, 6]}
    for sequence in expected:
        total = 0.0
        for texts, label in zip(examples, LABELS, strict=True):
            said = "\n".join(texts)
            for token in [*sequence, *pieces[label]]:
                # A full stop of the prompt replaces that of the text; these texts have none.
                total += backend.logprobs(said)[token]
                said += backend.words[token]
        assert found[sequence] == pytest.approx(total, abs=0.01)  # the grid's steps, summed
    assert set(backend.phases) == {Phase.GENERATE}
    assert writer.forwards == len(backend.phases)


def test_a_causal_writer_puts_the_mask_last_and_both_texts_of_a_pair_first():
    writer = CausalWriter(TableBackend())
    writer.open([("x",)], ["good"])
    assert writer.prompt((0, 1)) == "<input> it was <mask>"
    writer.open([("x", "y")], ["good"])
    assert writer.prompt((0, 1)) == "<input>\n<input2> it was <mask>"


def test_a_causal_pool_records_how_it_was_made(tmp_path):
    pool = generate_pool(
        CausalWriter(TableBackend()), TEXTS, LABELS, count=4, beam=30, max_tokens=2, seed=5, name="mine"
    )
    again = generate_pool(
        CausalWriter(TableBackend()), TEXTS, LABELS, count=4, beam=30, max_tokens=2, seed=5, name="mine"
    )
    assert pool == again
    assert len(pool.prompts_mask_last) == len(pool.made.scores) == 4
    assert pool.prompts == []
    assert pool.made.scores == sorted(pool.made.scores, reverse=True)
    assert (pool.made.method, pool.made.seed, pool.made.texts, pool.made.beam) == ("causal", 5, 3, 30)
    assert pool.made.label_words == {"bad": "bad", "good": "good"}
    assert pool.made.pbsdk == __version__
    assert ModelIdentity.from_json(pool.made.model) == TableBackend().identity
    backend = TableBackend()
    generate_pool(CausalWriter(backend), TEXTS, LABELS, count=4, beam=30, max_tokens=2)
    assert pool.made.forwards == len(backend.phases)
    path = write_pool(pool, tmp_path / "new" / "pool.json")
    assert load_pool(path) == pool
    assert [template.source for template in read_pool(path, Abilities(mask="last"))] == pool.prompts_mask_last


def test_a_pool_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"can't be written to .*choose another file"):
        write_pool(PromptPool(prompts=["<input> <mask>"]), tmp_path / "file" / "pool.json")


def test_fewer_texts_a_class_are_drawn_with_the_seed():
    texts = [f"text {number}" for number in range(40)]
    labels = ["good", "bad"] * 20
    pools = [
        generate_pool(CausalWriter(TableBackend()), texts, labels, beam=5, max_tokens=1, per_class=3, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert pools[0].made.texts == 6
    assert pools[0] == pools[1]
    assert pools[0].made.examples != pools[2].made.examples


def test_passes_of_generation_are_metered_in_their_own_phase(tmp_path):
    backend = FakeBackend(vocabulary_size=40, mask="last")
    words = {"x": backend.vocabulary[3].strip(), "y": backend.vocabulary[4].strip()}
    with MeteredBackend(backend, tmp_path / "run", QueryBudget.of(None)) as metered:
        pool = generate_pool(
            CausalWriter(metered), ["one day", "two days"], ["x", "y"], label_words=words, beam=3, max_tokens=2
        )
    assert {query.phase for query in backend.asked} == {Phase.GENERATE}
    assert pool.made.forwards == len(backend.asked)


def test_a_backend_that_hides_its_vocabulary_cannot_write():
    with pytest.raises(InputError, match="fake doesn't show its whole vocabulary"):
        CausalWriter(FakeBackend(top=5, mask="last"))


def test_a_label_word_that_cannot_be_spelled_is_refused():
    with pytest.raises(InputError, match="no token for ' ugly' in the label word 'ugly'"):
        generate_pool(CausalWriter(TableBackend()), ["a", "b"], ["good", "ugly"])


# What generate_pool refuses


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": [], "labels": []}, "no texts"),
        ({"labels": ["good"] * 3}, "all labels are 'good'"),
        ({"labels": [0, 1, 0]}, "the label 0 is not a word; name the classes with label_words="),
        ({"label_words": {"good": "good"}}, "no word for the label 'bad'"),
        ({"label_words": {"good": "good", "bad": "good"}}, "have the same word, 'good'"),
        ({"count": 0}, "count is 0"),
        ({"beam": 0}, "beam is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"per_class": 0}, "per_class is 0"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {"texts": TEXTS, "labels": LABELS, **changes}
    with pytest.raises(InputError, match=message):
        generate_pool(CausalWriter(TableBackend()), **arguments)


def test_numbers_as_labels_are_named_by_label_words():
    words = {0: "bad", 1: "good"}
    pool = generate_pool(CausalWriter(TableBackend()), TEXTS, [1, 0, 1], label_words=words, beam=5, max_tokens=1)
    assert pool.made.label_words == {"0": "bad", "1": "good"}


def test_a_writer_that_finishes_nothing_is_said():
    class Endless(CausalWriter):
        def extend(self, prefixes):
            following, ending = super().extend(prefixes)
            return following, np.full_like(ending, -np.inf)

    with pytest.raises(InputError, match="found no finished prompt of at most 2 tokens with a beam of 5"):
        generate_pool(Endless(TableBackend()), TEXTS, LABELS, beam=5, max_tokens=2)


# Opening writers by name


class Entry:
    def __init__(self, name, made):
        self.name, self.value, self._made = name, f"package:{name}", made

    def load(self):
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def test_writers_are_opened_by_name(monkeypatch):
    entries = [
        Entry("mine", lambda model: types.SimpleNamespace(model=model)),
        Entry("t5", ImportError("no torch")),
        Entry("other", ImportError("no other")),
        Entry("told", MissingExtra("install it")),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == "pbsdk.writers" else [])
    assert open_writer("mine", model="x").model == "x"
    with pytest.raises(InputError, match=r"no prompt writer is called 'min'. Did you mean 'mine'"):
        open_writer("min")
    with pytest.raises(MissingExtra, match=r"no torch.*pip install \"pbsdk\[local\]\""):
        open_writer("t5")
    with pytest.raises(MissingExtra, match=r"no other.*install what package:other needs"):
        open_writer("other")
    with pytest.raises(MissingExtra, match=r"^install it$"):
        open_writer("told")
    with pytest.raises(SetupError, match="'mine' doesn't take these options"):
        open_writer("mine", shape="round")


# Models, built on the spot

WORDS = ["▁it", "▁was", "▁good", "▁bad", "▁film", ".", "ly"]


def test_a_real_causal_model_scores_prompts_as_it_would_write_them(tmp_path):
    torch = pytest.importorskip("torch", reason="the adapter `local` needs torch")
    transformers = pytest.importorskip("transformers", reason="the adapter `local` needs transformers")
    import tokenizers

    from pbsdk_backends._local.weights import quiet
    from pbsdk_backends.local import LocalBackend

    vocabulary = [("<unk>", 0.0), ("<s>", 0.0), *((word, -2.0) for word in [*WORDS, "▁soup"])]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=0))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme="always")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    with quiet():
        tokenizer.save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
    examples, words = ["it was soup", "bad film. it was bad"], ["good", "bad"]
    writer = CausalWriter(LocalBackend(str(tmp_path), device="cpu"))
    writer.open([(text,) for text in examples], words)
    found = dict(beam_search(writer.extend, beam=1000, max_tokens=2))
    fit = range(2, 10)
    assert set(found) == {prompt for length in (1, 2) for prompt in itertools.product(fit, repeat=length)}
    for prompt, score in found.items():
        total = 0.0
        for text, word in zip(examples, words, strict=True):
            ids = made.encode(text).ids
            said = [*ids, *prompt, *made.encode(word).ids]
            with torch.inference_mode():
                logprobs = model(torch.tensor([said])).logits[0].log_softmax(-1)
            total += sum(float(logprobs[at - 1, said[at]]) for at in range(len(ids), len(said)))
        assert score == pytest.approx(total, abs=0.02)


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory):
    torch = pytest.importorskip("torch", reason="the writer `t5` needs torch")
    transformers = pytest.importorskip("transformers", reason="the writer `t5` needs transformers")
    folder = tmp_path_factory.mktemp("t5")
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), *((word, -2.0) for word in WORDS)]
    tokenizer = transformers.T5Tokenizer(vocab=vocabulary, extra_ids=4)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(tokenizer) + 2,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    from pbsdk_backends._local.weights import quiet

    with quiet():
        tokenizer.save_pretrained(folder)
        transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture
def t5(t5_folder):
    from pbsdk_backends.t5 import T5Writer

    return T5Writer(str(t5_folder), device="cpu", batch_tokens=60)


def filled_likelihoods(folder, examples, words, max_tokens):
    """Every filling of the two gaps and its summed log-likelihood, from the plain model."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    first, middle, last = tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"])
    fit = tokenizer.convert_tokens_to_ids(WORDS)
    fillings = [
        (*before, middle, *after)
        for total in range(max_tokens)
        for split in range(total + 1)
        for before in itertools.product(fit, repeat=split)
        for after in itertools.product(fit, repeat=total - split)
        if not before or tokenizer.convert_ids_to_tokens(before[0]) != "ly"
    ]
    totals = dict.fromkeys(fillings, 0.0)
    for texts, word in zip(examples, words, strict=True):
        ids = tokenizer(
            " ".join([texts[0], "<extra_id_0>", word, "<extra_id_1>", *texts[1:]]), return_tensors="pt"
        ).input_ids
        for filling in fillings:
            target = [first, *filling, last]
            with torch.inference_mode():
                logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[0, *target[:-1]]])).logits[0]
            chosen = logits.log_softmax(-1)[range(len(target)), target]
            totals[filling] += float(chosen[1:].sum())  # the first gap's sign is given, not chosen
    return totals


@pytest.mark.parametrize(
    "examples",
    [
        [("it was good",), ("bad film.",), ("it was it was bad",)],
        [("it was good", "film"), ("bad film.", "it was bad"), ("good", "")],
    ],
    ids=["single", "pairs"],
)
def test_t5_finds_what_enumeration_finds(t5_folder, t5, examples):
    words = ["good", "bad", "bad"]
    expected = filled_likelihoods(t5_folder, examples, words, max_tokens=3)
    t5.open(examples, words)
    found = beam_search(t5.extend, beam=100_000, max_tokens=3)
    assert {filling for filling, _ in found} == set(expected)
    for filling, score in found:
        assert score == pytest.approx(expected[filling], abs=1e-3)
    best = sorted(expected.values(), reverse=True)
    for beam in (1, 5, 20):
        narrow = beam_search(t5.extend, beam=beam, max_tokens=3)
        assert len(narrow) <= beam
        for place, (filling, score) in enumerate(narrow):
            assert score == pytest.approx(expected[filling], abs=1e-3)
            assert score <= best[place] + 1e-3


def test_t5_counts_one_forward_for_each_text_and_prefix(t5):
    t5.open([("it was good",), ("bad film",)], ["good", "bad"])
    t5.extend([()])
    t5.extend([(4,), (5,), (6,)])
    assert t5.forwards == 2 + 6


def test_t5_gives_the_same_numbers_however_little_runs_at_once(t5_folder, t5):
    from pbsdk_backends.t5 import T5Writer

    alone = T5Writer(str(t5_folder), device="cpu", batch_tokens=1)
    prefixes = [(first, second) for first in range(4, 9) for second in range(4, 11)]
    for writer in (t5, alone):
        writer.open([("it was good",), ("bad film",)], ["good", "bad"])
    assert np.allclose(t5.extend(prefixes)[0], alone.extend(prefixes)[0], atol=1e-4)


def test_t5_writes_prompts_in_our_notation(t5):
    middle = t5.prompt
    it, was, film, stop, second = 4, 5, 8, 9, t5._middle
    t5.open([("it was good",)], ["good"])
    assert middle((it, was, second, film, stop)) == "<input> it was <mask> film."
    assert middle((stop, second)) == "<input>. <mask>"
    t5.open([("it was good", "bad film")], ["good"])
    assert middle((stop, second, stop)) == "<input>. <mask>. <input2>"


def test_a_t5_pool_is_for_masks_anywhere_and_repeats(t5, tmp_path):
    texts, labels = ["it was good", "bad film."], ["good", "bad"]
    pool = generate_pool(t5, texts, labels, beam=500, max_tokens=4, count=7)
    assert pool == generate_pool(t5, texts, labels, beam=500, max_tokens=4, count=7)
    assert 1 <= len(pool.prompts) <= 7
    assert pool.prompts == distinct(pool.prompts)
    assert pool.made.method == "t5"
    assert "weights" in json.loads(pool.made.model)
    path = write_pool(pool, tmp_path / "pool.json")
    assert [template.source for template in read_pool(path, Abilities())] == pool.prompts


def test_t5_reads_control_tokens_in_texts_as_text_and_cuts_the_longer_text(t5_folder, t5):
    from pbsdk_backends.t5 import T5Writer

    gaps = {t5._gap, t5._middle}
    ids = t5._filled(("it <extra_id_0> was </s> <extra_id_1>", "film"), "good")
    assert sum(token in gaps for token in ids) == 2
    assert ids.count(1) == 1
    short = T5Writer(str(t5_folder), device="cpu", max_length=8)
    assert len(short._filled(("it was good it was good", "bad film"), "good")) == 8
    assert short._filled(("it was good it was good", "bad film"), "good")[-3:-1] == [7, 8]
    with pytest.raises(InputError, match="max_length=2 has no room for the label word 'good'"):
        T5Writer(str(t5_folder), device="cpu", max_length=2).open([("it",)], ["good"])


def test_what_is_no_t5_is_refused(t5_folder, tmp_path):
    import shutil

    from pbsdk_backends.t5 import T5Writer

    with pytest.raises(ModelUnusable, match=r"no model.safetensors"):
        T5Writer(str(tmp_path), device="cpu")
    broken = tmp_path / "broken"
    shutil.copytree(t5_folder, broken)
    (broken / "model.safetensors").write_bytes(b"not a tensor in sight")
    with pytest.raises(ModelUnusable, match="'broken' can't be loaded as a T5"):
        T5Writer(str(broken), device="cpu")
    bare = tmp_path / "bare"
    shutil.copytree(t5_folder, bare)
    import transformers

    plain = transformers.T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)], extra_ids=0)
    plain.save_pretrained(bare)
    with pytest.raises(ModelUnusable, match="can't fill gaps"):
        T5Writer(str(bare), device="cpu")


def test_a_t5_writes_the_prompts_of_a_reproduction(t5_folder, tmp_path):
    data = tmp_path / "data" / "films"
    data.mkdir(parents=True)
    rows = [
        {"text": f"it was {'good' if label else 'bad'} film {at}", "label": label}
        for at in range(4)
        for label in (0, 1)
    ]
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (data / "meta.json").write_text('{"labels": ["bad", "good"]}', "utf-8")
    options = (
        "--datasets",
        "films",
        "--prompts",
        "generated",
        "--t5",
        str(t5_folder),
        "--per-class",
        "1",
        "--seeds",
        "13",
    )
    more = ("--methods", "boosting-1,boosting-5", "--model", "fake", "--folder", str(tmp_path / "out"), "--json")
    shown = subprocess.run(
        [sys.executable, "-m", "pbsdk", "reproduce", *options, *more],
        env={**os.environ, "PBSDK_DATA": str(data.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert shown.returncode == 0, shown.stderr
    assert [cell["method"] for cell in json.loads(shown.stdout)["cells"]] == ["boosting-1", "boosting-5"]
    pool = load_pool(tmp_path / "out" / "pools" / "films-13-5-1.json")
    assert (pool.made.method, pool.made.texts) == ("t5", 2)
    assert all("<mask>" in prompt for prompt in pool.prompts)
