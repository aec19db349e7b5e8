"""For tests of adapters, and of code that uses pbsdk: no model, no network, no key.

- `FakeBackend` answers without a model, deterministically, and its answers carry real signal.
- `BackendContract` is the contract that every adapter must fulfil, as tests.
- `ReplayBackend` gives only the answers that a real model once gave, from a file (`pbsdk.testing.recording`).
- `TopOnly` shows only a model's likeliest tokens, so that a recording of it is small.

pytest discovers the fixtures `fake_lm`, `make_fake_lm` and `replay_lm` automatically: see `pbsdk.pytest_plugin`.
"""

from pbsdk.testing.contract import BackendContract
from pbsdk.testing.fake import FakeBackend
from pbsdk.testing.replay import ReplayBackend
from pbsdk.testing.top_only import TopOnly

__all__ = ["BackendContract", "FakeBackend", "ReplayBackend", "TopOnly"]
