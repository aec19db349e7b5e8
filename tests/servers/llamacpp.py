"""llama.cpp's server, compiled in the wheel `xllamacpp`.

It answers completions and chat. Chat is asked in conversations, with plain prompts whose last words begin the answer, and with plain prompts
that leave a blank, which was once the only way and stays for comparison.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.environment import Environment
from servers.process import figure, free_port, running
from servers.trial import CONVERSATIONS, MODEL, PLAIN, Running, Server, Way
from servers.weights import INSIDE, model_file


@contextmanager
def start(environment: Environment, folder: Path) -> Iterator[Running]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [environment.python, INSIDE / "llamacpp_server.py", model_file(), MODEL, str(port)]
    with running(command, f"{url}/health", folder / "llamacpp.log"):
        # It counts tokens that it wrote, and a request writes one.
        yield Running(f"{url}/v1", figure(f"{url}/metrics", "llamacpp:tokens_predicted_total"), environment.python)


def way(name: str, prompts: list[str], least: float = 0.6, **options: object) -> Way:
    """Return a way of asking for the top 20, which hosted models show as well."""
    network = {"workers": 4, "read_timeout": 300, "deadline": 300}
    return Way(name, "openai", {"model": MODEL, "top": 20, **network, **options}, prompts, least)


SERVER = Server(
    "llama.cpp",
    "xllamacpp",
    (("xllamacpp",),),
    start,
    (
        way("completions", PLAIN, 0.8),
        way("chat, conversations", CONVERSATIONS, 0.75, api="chat"),
        way("chat, plain prompts, the answer begun", PLAIN[:4], api="chat"),
        way("chat, plain prompts, a blank (the old way)", PLAIN[:4], 0.0, api="chat", prefill=False),
    ),
)
