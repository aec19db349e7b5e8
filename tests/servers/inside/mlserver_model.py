"""SmolLM2 as a runtime of MLServer, which finds it by the name in `model-settings.json`."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from smollm2 import Next


class SmolLM2(MLModel):
    async def load(self) -> bool:
        self.next = Next(self.settings.parameters.uri)
        return True

    async def predict(self, payload):
        logits = self.next.logits(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)])
