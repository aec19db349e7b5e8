"""Servers that nobody here wrote, with SmolLM2 behind each: `make test-servers`.

Each has a virtual environment of its own under `build/servers`, and is left out, with the reason, where it can't be installed or started. One
that runs is asked through an adapter: a ticket classifier is trained and tested, the ledger's count is held to the server's own, and a
second training must ask nothing (`trial`).

| module | what it is |
|---|---|
| `environment` | a virtual environment, and what is installed into it |
| `process` | a server as a process: started, awaited, ended, and asked for its figures |
| `trial` | what is done with each server, and what must be true of it |
| `llamacpp`, `vllm`, `litellm`, `kserve`, `mlserver`, `triton` | a server each: what it needs, how it starts, how it counts, how it is asked |
| `hub`, `tritonclient` | a client each, before `pbsdk serve` (`clients`) |
| `inside/` | scripts that run in the servers' environments, where pbsdk is not installed |
"""
