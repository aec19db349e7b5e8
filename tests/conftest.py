"""Shared set-up: Hypothesis draws the same examples every time, and benchmark data beside the checkout are found."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# The package itself looks nowhere but where PBSDK_DATA says; commands that tests start inherit it.
_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
if _DATA.is_dir():
    os.environ.setdefault("PBSDK_DATA", str(_DATA))
