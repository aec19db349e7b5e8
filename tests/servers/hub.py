"""Hugging Face's own client, `huggingface_hub.InferenceClient`, before `pbsdk serve`: fill-mask."""

from servers.clients import ThroughInferenceClient, serving
from servers.trial import PLAIN, Server, Way

SERVER = Server(
    "pbsdk serve",
    "huggingface_hub",
    (("huggingface_hub",),),
    serving,
    (Way("`InferenceClient`, fill-mask", lambda server: ThroughInferenceClient(server.url), prompts=PLAIN[:4]),),
)
