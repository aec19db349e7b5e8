"""Shared set-up: Hypothesis draws the same examples every time, so that a run can be repeated."""

from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")
