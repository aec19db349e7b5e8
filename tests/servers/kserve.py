"""KServe's model server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.environment import TORCH, Environment
from servers.process import figure, free_port, running
from servers.trial import MODEL, Running, Server
from servers.weights import INSIDE, by_tensors, unpacked_folder


@contextmanager
def start(environment: Environment, folder: Path) -> Iterator[Running]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [environment.python, INSIDE / "kserve_model.py", unpacked_folder(), MODEL, str(port)]
    with running(command, f"{url}/v2/models/{MODEL}/ready", folder / "kserve.log"):
        yield Running(
            url, figure(f"{url}/metrics", "request_predict_seconds_count", model_name=MODEL), environment.python
        )


SERVER = Server("KServe", "kserve", (TORCH, ("kserve", "transformers>=4.48")), start, by_tensors())
