"""NVIDIA's own client, `tritonclient`, before `pbsdk serve`: texts and numbers as bytes and as JSON, in all four ways."""

from servers.clients import ThroughTritonClient, serving
from servers.trial import PLAIN, Server, Way

SERVER = Server(
    "pbsdk serve",
    "tritonclient",
    (("tritonclient[http]",),),
    serving,
    (Way("`tritonclient`", lambda server: ThroughTritonClient(server.url, server.python), prompts=PLAIN[:4]),),
)
