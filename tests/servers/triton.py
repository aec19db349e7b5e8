"""NVIDIA's Triton, whose program the wheel `nvidia-pytriton` carries."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.environment import TORCH, Environment
from servers.process import figure, free_port, running
from servers.trial import MODEL, Running, Server
from servers.weights import INSIDE, by_tensors, unpacked_folder


def finish(environment: Environment) -> None:
    """Put a mend for the interpreter inside where it is read."""
    packages = environment.run("import sysconfig; print(sysconfig.get_path('purelib'))")
    shutil.copy(INSIDE / "triton_python" / "sitecustomize.py", packages)


@contextmanager
def start(environment: Environment, folder: Path) -> Iterator[Running]:
    port, metrics = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [environment.python, INSIDE / "triton_model.py", unpacked_folder(), MODEL, str(port), str(metrics)]
    with running(command, f"{url}/v2/models/{MODEL}/ready", folder / "triton.log"):
        yield Running(
            url,
            figure(f"http://127.0.0.1:{metrics}/metrics", "nv_inference_request_success", model=MODEL),
            environment.python,
        )


SERVER = Server(
    "Triton", "nvidia-pytriton", (TORCH, ("nvidia-pytriton", "transformers>=4.48")), start, by_tensors(), finish
)
