"""MLServer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.environment import TORCH, Environment
from servers.process import figure, free_port, running
from servers.trial import MODEL, Running, Server
from servers.weights import INSIDE, by_tensors, unpacked_folder


@contextmanager
def start(environment: Environment, folder: Path) -> Iterator[Running]:
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    url = f"http://127.0.0.1:{ports['http_port']}"
    model = {
        "name": MODEL,
        "implementation": "mlserver_model.SmolLM2",
        "parameters": {"uri": str(unpacked_folder())},
        "inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, -1]}],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [1, -1]}],
    }
    (folder / "model-settings.json").write_text(json.dumps(model))
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports}))
    command = [environment.folder / "bin" / "mlserver", "start", folder]
    inside = {"PYTHONPATH": str(INSIDE)}
    with running(command, f"{url}/v2/models/{MODEL}/ready", folder / "mlserver.log", inside):
        metrics = f"http://127.0.0.1:{ports['metrics_port']}/metrics"
        yield Running(url, figure(metrics, "model_infer_request_success_total", model=MODEL), environment.python)


SERVER = Server("MLServer", "mlserver", (TORCH, ("mlserver", "transformers>=4.48")), start, by_tensors())
