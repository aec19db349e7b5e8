"""Other engines beside pbsdk, on the same texts in one run: `python bench/engines.py`.

    pip install xllamacpp onnx onnxscript onnxruntime openvino    # what is missing is left out of the table
    python bench/engines.py --threads 2

SmolLM2 answers ten prompts that end in the mask, about the first texts of AG's News' test set, which is found through `PBSDK_DATA`. Every engine
has the same weights (the Q4_1 file that the embedded model is unpacked from, the floats in it, or those floats as Q8_0), the same
token ids, and its best settings of those tried:

- pbsdk: the embedded model, `exact` and `fast`; and the adapter `gguf` as it is.
- llama.cpp: queries in the order of their tokens, so that its cache keeps the text for all prompts. 20 tokens are shown, since it spells out each.
- ONNX Runtime and OpenVINO: the model exported with a tree's attention mask, so that a text is read once for its prompts, as pbsdk does.
  Calls hold one, two or four texts; the fastest counts.
- `transformers.pipeline("text-generation")`, one token a prompt, which shares nothing and shows no probabilities.

The engines take turns in one process, and the best turn of each counts. The last two columns compare their answers with exact ones: the mean difference over the 300
likeliest tokens (of those shown), and how often the likeliest token is the same.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from local_speed import ENDINGS, query
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from pbsdk.backend import MaskedLMBackend, MaskedQuery
from pbsdk.reproduce.benchmarks import named
from pbsdk_backends._local.files import find_file
from pbsdk_backends._local.sharing import Row, tree
from pbsdk_backends._tokens.reading import Reading
from pbsdk_backends.smollm2 import SmolLM2Backend

LIKELIEST = 300
SHOWN = 20
TEXTS_A_CALL = (1, 2, 4)

Answers = dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""Of each query the tokens shown, and their log-probabilities."""


@dataclass
class Engine:
    """An engine, ready to answer all queries, in each of its settings."""

    name: str
    settings: list[Callable[[], Answers]]


class AtAsks(nn.Module):
    """A causal model as one graph: a tree of tokens in, the log-probabilities at the asked places out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.body, self.head = (
            model.model,
            copy.deepcopy(model.lm_head),
        )  # tied weights confuse ONNX Runtime's quantiser

    def forward(self, ids: Tensor, positions: Tensor, hidden: Tensor, asks: Tensor) -> Tensor:
        """Return (asks, V) for ids and positions (1, T), the additive mask (1, 1, T, T), and asks."""
        states = self.body(input_ids=ids, position_ids=positions, attention_mask=hidden, use_cache=False)[0]
        logprobs: Tensor = self.head(states[0, asks]).log_softmax(-1)
        return logprobs


def inputs_of(row: Row) -> dict[str, np.ndarray[Any, Any]]:
    """Return what the graph takes for a tree."""
    assert row.sight is not None
    hidden = np.where(row.sight, np.float32(0), np.finfo(np.float32).min)[None, None]
    return {
        "ids": np.array([row.ids], dtype=np.int64),
        "positions": np.array([row.depths], dtype=np.int64),
        "hidden": hidden,
        "asks": np.array(row.asks, dtype=np.int64),
    }


def pbsdk(title: str, backend: MaskedLMBackend, queries: Sequence[MaskedQuery]) -> Engine:
    """Ask through an adapter."""

    def ask() -> Answers:
        return {
            owner: (
                np.arange(len(answer.codes)) if answer.tokens is None else np.asarray(answer.tokens),
                answer.logprobs,
            )
            for owner, answer in enumerate(backend.stream(queries))
        }

    return Engine(title, [ask])


def export(model: Any, example: Row, file: Path) -> None:
    """Write the model as an ONNX graph for trees of any size."""
    given = {name: torch.from_numpy(value) for name, value in inputs_of(example).items()}
    size, asks = torch.export.Dim("size", min=2, max=2048), torch.export.Dim("asks", min=2, max=512)
    shapes = {"ids": {1: size}, "positions": {1: size}, "hidden": {2: size, 3: size}, "asks": {0: asks}}
    program = torch.onnx.export(
        AtAsks(model), (), kwargs=given, dynamic_shapes=shapes, dynamo=True, input_names=list(given), verbose=False
    )
    assert program is not None
    program.save(str(file), external_data=True)


def graphs(run: Callable[[dict[str, Any]], Any], forests: Sequence[Sequence[Row]], name: str) -> Engine:
    """Ask a graph about trees, in calls of each size."""

    def ask(rows: Sequence[Row]) -> Answers:
        answers: Answers = {}
        for row in rows:
            logprobs = run(inputs_of(row))
            answers |= {owner: (np.arange(len(one)), one) for owner, one in zip(row.owners, logprobs, strict=True)}
        return answers

    return Engine(name, [partial(ask, rows) for rows in forests])


def onnx_runtime(file: Path, forests: Sequence[Sequence[Row]], threads: int) -> Iterator[Engine]:
    """Yield ONNX Runtime in floats and in int8."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = file.with_name("int8.onnx")
    plain = onnx.load(str(file))
    plain.graph.ClearField("value_info")  # the exporter's shapes of transposed weights, at which the quantiser stumbles
    quantize_dynamic(plain, str(small), weight_type=QuantType.QInt8, per_channel=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for said, graph in (("float32", file), ("int8", small)):
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        yield graphs(lambda given, session=session: session.run(None, given)[0], forests, f"ONNX Runtime, {said}")  # type: ignore[misc]


def openvino(file: Path, forests: Sequence[Sequence[Row]], threads: int) -> Iterator[Engine]:
    """Yield OpenVINO in floats of both sizes."""
    import openvino as ov

    core = ov.Core()
    graph = core.read_model(str(file))
    for said, precision in (("float32", ov.Type.f32), ("bfloat16", ov.Type.bf16)):
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core.compile_model(graph, "CPU", settings)
        yield graphs(lambda given, compiled=compiled: compiled(given)[0], forests, f"OpenVINO, {said}")  # type: ignore[misc]


def llamacpp(file: Path, readings: Sequence[Reading], threads: int, name: str) -> Engine:
    """Ask llama.cpp about token ids, in their order."""
    from pbsdk_backends._llama.engine import Engine as LlamaCpp

    engine = LlamaCpp(file, context=2048, threads=threads, gpu_layers=None)
    order = sorted(range(len(readings)), key=lambda owner: readings[owner].ids)
    return Engine(name, [lambda: {owner: engine.answer(readings[owner].ids, SHOWN) for owner in order}])


def as_q8(file: Path, made: Path) -> Path:
    """Write a GGUF file's matrices again as Q8_0."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(made, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kinds = field.types
        writer.add_key_value(field.name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for one in reader.tensors:
        floats = gguf.quants.dequantize(one.data, one.tensor_type)
        if one.tensor_type is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(one.name, floats)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(one.name, gguf.quants.quantize(floats, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def pipeline(folder: Path, texts: Sequence[str], dtype: torch.dtype) -> Engine:
    """Let transformers' pipeline continue each query by a token, which is all that it tells."""
    made: Any = transformers.pipeline("text-generation", model=str(folder), dtype=dtype, device="cpu")
    made.tokenizer.pad_token = made.tokenizer.eos_token
    made.tokenizer.padding_side = "left"
    ordered = sorted(texts, key=len)

    def ask(size: int) -> Answers:
        made(ordered, batch_size=size, max_new_tokens=1, do_sample=False, return_full_text=False)
        return {}

    return Engine(
        f'transformers.pipeline("text-generation"), {str(dtype).removeprefix("torch.")}',
        [partial(ask, size) for size in (8, 16)],
    )


@contextmanager
def optional(name: str) -> Iterator[None]:
    """Leave an engine out whose package is missing."""
    try:
        yield
    except ImportError as error:
        print(f"left out: {name} ({error})")


def every_engine(options: argparse.Namespace, queries: Sequence[MaskedQuery], scratch: Path) -> Iterator[Engine]:
    """Yield the engines that are installed, each with the same weights."""
    exact, fast = (SmolLM2Backend(device="cpu", precision=name, threads=options.threads) for name in ("exact", "fast"))
    readings = [exact._reader.read(one) for one in queries]  # noqa: SLF001 - the same tokens for every engine
    yield pbsdk("pbsdk, `exact`", exact, queries)
    yield pbsdk(f"pbsdk, `fast` ({fast.identity.details['precision']})", fast, queries)
    file = find_file()
    with optional("llama.cpp"):
        from pbsdk_backends.gguf import GGUFBackend

        files = {"Q8_0": as_q8(file, scratch / "smollm2.Q8_0.gguf"), "Q4_1": file}
        for kind, place in files.items():
            yield llamacpp(place, readings, options.threads, f"llama.cpp, {kind}, {SHOWN} tokens shown")
            adapter = GGUFBackend(str(place), threads=options.threads)
            yield pbsdk(f"pbsdk's adapter `gguf`, {kind}, 1,000 tokens shown", adapter, queries)
    per = len(ENDINGS)
    forests = [
        [
            tree(range(start, min(start + per * texts, len(queries))), readings)
            for start in range(0, len(queries), per * texts)
        ]
        for texts in TEXTS_A_CALL
    ]
    with optional("ONNX Runtime and OpenVINO"), torch.inference_mode():
        graph = scratch / "model.onnx"
        export(exact._model, forests[0][0], graph)  # noqa: SLF001 - the weights that pbsdk runs
        with optional("ONNX Runtime"):
            yield from onnx_runtime(graph, forests, options.threads)
        with optional("OpenVINO"):
            yield from openvino(graph, forests, options.threads)
    folder = Path(exact._model.config._name_or_path)  # noqa: SLF001
    texts = [one.text("").rstrip() for one in queries]
    for dtype in (torch.float32, torch.bfloat16):
        yield pipeline(folder, texts, dtype)


def nearness(found: Answers, exact: Answers) -> tuple[str, str]:
    """Return how far answers lie from exact ones, and how often their likeliest token is the same."""
    if not found:
        return "", ""
    apart, same = [], []
    for owner, (tokens, values) in found.items():
        plain = exact[owner][1]
        likely = np.intersect1d(np.argsort(-plain)[:LIKELIEST], tokens)
        ours = dict(zip(tokens.tolist(), values.tolist(), strict=True))
        apart.append(np.mean([abs(ours[token] - plain[token]) for token in likely.tolist()]))
        same.append(tokens[int(np.argmax(values))] == int(np.argmax(plain)))
    return f"{np.mean(apart):.3f}", f"{np.mean(same):.0%}"


def main() -> None:
    """Measure the engines by turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3, help="turns of each engine; the best counts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    texts = named("agnews", "test").examples[: options.texts]
    queries = [query(text, ending) for text in texts for ending in ENDINGS]
    with tempfile.TemporaryDirectory() as scratch:
        engines = list(every_engine(options, queries, Path(scratch)))
        best = {engine.name: float("inf") for engine in engines}
        answers: dict[str, Answers] = {}
        for _ in range(options.repeat):
            for engine in engines:
                for ask in engine.settings:
                    start = time.perf_counter()
                    answers[engine.name] = ask()
                    best[engine.name] = min(best[engine.name], time.perf_counter() - start)
    exact = engines[0].name
    print(
        f"\n| SmolLM2, {len(texts)} texts, ten prompts, threads: {options.threads} | passes a second | times `exact` | difference, nat | likeliest token the same |"
    )
    print("|---|---|---|---|---|")
    for name, seconds in best.items():
        near, same = nearness(answers[name], answers[exact])
        print(f"| {name} | {len(queries) / seconds:.1f} | {best[exact] / seconds:.2f} | {near} | {same} |", flush=True)


if __name__ == "__main__":
    main()
