"""For tests of adapters, and of whatever stands on pbsdk: no model, no network, no key.

- `FakeBackend` answers without a model, always the same, with real signal in it.
- `BackendContract` is what every adapter must hold to, as tests.
- `ReplayBackend` gives the answers that a real model gave once, from a file (`pbsdk.testing.recording`), and no others.
- `TopOnly` shows a model's likeliest tokens alone, so that a recording of it is small.

pytest finds the fixtures `fake_lm`, `make_fake_lm` and `replay_lm` by itself: see `pbsdk.pytest_plugin`.
"""

from pbsdk.testing.contract import BackendContract
from pbsdk.testing.fake import FakeBackend
from pbsdk.testing.replay import ReplayBackend
from pbsdk.testing.top_only import TopOnly

__all__ = ["BackendContract", "FakeBackend", "ReplayBackend", "TopOnly"]
