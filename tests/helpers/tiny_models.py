"""Tiny models built on the spot, one of each family, each with a tokenizer of that family's kind."""

from functools import cache
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pbsdk.backend import MaskedQuery, Part, digest
from pbsdk_backends._local.weights import quiet

CORPUS = [
    "The weather is fine today, and the sea is calm.",
    "A short text about a long day. It was good; it was bad.",
    "All of it is about rain, soup, banks and boats.",
    "Stocks fell on Monday as oil prices rose to a record, analysts said.",
    "The team won the game 3-2 after extra time, its third win this season.",
    "Scientists say that the new chip is ten times as fast as the old one.",
    "naïve café 日本語 🙂 \ttabbed\nlines, (brackets) [square] <angle> and |bars|.",
]

BYTES = dict.fromkeys(("roberta", "modernbert", "deberta", "gpt2", "bloom", "mistral"), "bytes")
PIECES = dict.fromkeys(("bert", "distilbert", "electra", "fnet"), "pieces")
UNIGRAM = dict.fromkeys(("albert", "deberta-v2", "xlm-roberta"), "unigram")
TOKENIZER_OF = {**BYTES, **PIECES, **UNIGRAM, "llama": "metaspace"}

MASKED = ["roberta", "bert", "distilbert", "albert", "electra", "deberta", "deberta-v2", "xlm-roberta", "modernbert"]
CAUSAL = ["gpt2", "llama"]


def _byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return made


def _pieces() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    return made


def _unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    return made


def _metaspace() -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(
        [word for text in CORPUS for word in text.split()],
        trainers.BpeTrainer(vocab_size=480, special_tokens=special[:3], show_progress=False),
    )
    return made


@cache
def tokenizer_of(kind: str, *, causal: bool) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer of the kind, opening and closing texts as its family does."""
    made = {"bytes": _byte_level, "pieces": _pieces, "unigram": _unigram, "metaspace": _metaspace}[kind]()
    if kind == "pieces":
        begin, end, names = "[CLS]", "[SEP]", {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        names |= {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    else:
        begin, end, names = "<s>", "</s>", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        if not causal:
            mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
            names |= {"pad_token": "<pad>", "mask_token": mask}
    form = {"bytes": "$A", "metaspace": f"{begin} $A"}.get(kind, "$A") if causal else f"{begin} $A {end}"
    ids = [(token, made.token_to_id(token)) for token in (begin, end)]
    made.post_processor = processors.TemplateProcessing(single=form, special_tokens=ids)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = {**SIZES, "max_position_embeddings": 96, "type_vocab_size": 2}
ROBERTA = {**BERT, "max_position_embeddings": 98, "type_vocab_size": 1}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96}

SETTINGS: dict[str, dict[str, object]] = {
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "bert": BERT,
    "electra": {**BERT, "embedding_size": 16},
    "albert": {**BERT, "embedding_size": 16},
    "fnet": {k: v for k, v in BERT.items() if k != "num_attention_heads"},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 96},
    "deberta": {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "deberta-v2": {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "modernbert": {**SIZES, "max_position_embeddings": 96, "local_attention": 8, "global_attn_every_n_layers": 2},
    "gpt2": GPT,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "llama": {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 96},
    "mistral": {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 96, "sliding_window": 16},
}


def build(folder: Path, family: str, *, causal: bool = False, spare: int = 3, **changes: object) -> Path:
    """Save a tiny random model of the family, its head a few columns wider than its tokenizer."""
    torch.manual_seed(7)
    tokenizer = tokenizer_of(TOKENIZER_OF[family], causal=causal)
    special = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")
    }
    settings = {**SETTINGS[family], **special, **changes}
    config = transformers.AutoConfig.for_model(family, vocab_size=len(tokenizer) + spare, **settings)
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    with quiet():
        model = auto.from_config(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1:  # strong enough that a wrong sight or position shows
                    weight.normal_(0, 0.4)
                elif name.endswith("bias"):
                    weight.normal_(0, 0.1)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def ask(text: str, before: str = " It was ", after: str = ".", pair: str | None = None) -> MaskedQuery:
    """Return a query for a text, or for a pair with the mask between its texts."""
    second = () if pair is None else (Part("prompt", " "), Part("input", pair))
    parts = (Part("input", text), Part("prompt", before), Part("mask"), Part("prompt", after), *second)
    return MaskedQuery(parts, digest(text, pair or ""), f"<input>{before}<mask>{after}")


def plain_logprobs(folder: Path, query: MaskedQuery, *, causal: bool) -> torch.Tensor:
    """Return transformers' own answer: its tokenizer, its whole forward pass, nothing of ours."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    with quiet(), torch.inference_mode():
        model = auto.from_pretrained(folder).float().eval()
        if causal:
            text = "".join(part.text for part in query.before_mask()).rstrip(" ")
            inputs = tokenizer(text, return_tensors="pt")
            at = -1
        else:
            inputs = tokenizer(query.text(tokenizer.mask_token), return_tensors="pt")
            at = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        return model(input_ids=inputs["input_ids"]).logits[0, at].log_softmax(-1)
