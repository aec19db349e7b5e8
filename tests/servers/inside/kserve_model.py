"""SmolLM2 on KServe's model server: FOLDER NAME PORT."""

import sys

import numpy as np
import uvicorn
from kserve import InferOutput, InferResponse, Model, ModelServer
from smollm2 import Next

Config = uvicorn.Config


class SmolLM2(Model):
    def __init__(self, folder, name):
        super().__init__(name)
        self.next = Next(folder)
        self.ready = True

    def get_input_types(self):
        return [{"name": "input_ids", "datatype": "INT64", "shape": [1, -1]}]

    def get_output_types(self):
        return [{"name": "logits", "datatype": "FP32", "shape": [1, -1]}]

    def predict(self, payload, headers=None, response_headers=None):
        logits = self.next.logits(payload.inputs[0].as_numpy())
        output = InferOutput("logits", list(logits.shape), "FP32")
        output.set_data_from_numpy(np.ascontiguousarray(logits), binary_data=True)
        return InferResponse(payload.id, self.name, [output], requested_outputs=payload.request_outputs)


# KServe listens on every address and has no setting for it.
uvicorn.Config = lambda *given, **named: Config(*given, **{**named, "host": "127.0.0.1"})

folder, name, port = sys.argv[1:]
ModelServer(http_port=int(port), enable_grpc=False, workers=1).start([SmolLM2(folder, name)])
