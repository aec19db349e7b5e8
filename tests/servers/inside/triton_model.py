"""SmolLM2 on Triton, by way of PyTriton: FOLDER NAME PORT METRICS_PORT."""

import sys

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from smollm2 import Next

folder, name, port, metrics = sys.argv[1:]
model = Next(folder)


def infer(requests):
    return [{"logits": model.logits(request["input_ids"])} for request in requests]


here = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1", "metrics_address": "127.0.0.1"}
with Triton(config=TritonConfig(http_port=int(port), metrics_port=int(metrics), allow_grpc=False, **here)) as triton:
    triton.bind(
        name,
        infer,
        inputs=[Tensor(name="input_ids", dtype=np.int64, shape=(-1, -1))],
        outputs=[Tensor(name="logits", dtype=np.float32, shape=(-1, -1))],
        config=ModelConfig(batching=False),
    )
    triton.serve()
