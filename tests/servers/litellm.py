"""A proxy of LiteLLM's, before llama.cpp's server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import llamacpp
from servers.environment import Environment
from servers.process import free_port, lines_in, running
from servers.trial import CONVERSATIONS, MODEL, PLAIN, Running, Server

KEY = "sk-of-the-proxy"
"""It doesn't start without one."""


@contextmanager
def start(environment: Environment, folder: Path) -> Iterator[Running]:
    behind = Environment(environment.folder.with_name("llamacpp"), llamacpp.SERVER.steps)
    behind.fill()
    with llamacpp.start(behind, folder) as model:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        known = {"api_base": model.url, "api_key": "none"}
        models = [
            {"model_name": MODEL, "litellm_params": {"model": f"text-completion-openai/{MODEL}", **known}},
            {"model_name": f"{MODEL}-chat", "litellm_params": {"model": f"openai/{MODEL}", **known}},
        ]
        # It reads YAML, of which JSON is a part.
        (folder / "litellm.yaml").write_text(json.dumps({"model_list": models, "router_settings": {"num_retries": 0}}))
        command = [environment.folder / "bin" / "litellm", "--config", folder / "litellm.yaml"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        own = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
        with running(command, f"{url}/health/liveliness", folder / "litellm.log", own) as log:
            yield Running(
                f"{url}/v1", lines_in(log, r'"POST /v1/(chat/)?completions HTTP/1.1" 200'), environment.python
            )


SERVER = Server(
    "LiteLLM proxy",
    "litellm",
    # Later ones ask for a certifi that isn't published yet.
    (("litellm[proxy]<1.106",),),
    start,
    (
        llamacpp.way("completions", PLAIN[:4], api="completions", api_key=KEY),
        llamacpp.way("chat, conversations", CONVERSATIONS[:4], api="chat", model=f"{MODEL}-chat", api_key=KEY),
    ),
)
