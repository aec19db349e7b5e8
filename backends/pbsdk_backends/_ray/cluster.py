"""The cluster: joining the one that is there, or starting one on this machine, which nobody else can reach."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray._private import ray_constants

from pbsdk.errors import BackendUnavailable, InputError

__all__ = ["join", "refuse_what_never_fits"]


def join(address: str) -> None:
    """Join a cluster, unless this process is in one already.

    "auto" is the one that this machine belongs to, or else one that is started here; "local" is always started here.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports to nobody
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about Ray's own future
        if address == "auto":
            with suppress(ConnectionError):
                ray.init(address="auto", **quiet)
                return
        if address in {"auto", "local"}:
            _start(quiet)
            return
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BackendUnavailable(
                f"there is no Ray cluster at {address} that can be joined: {error}; check the address, and that this machine has "
                "the cluster's token (~/.ray/auth_token or RAY_AUTH_TOKEN)"
            ) from error


def _start(quiet: Mapping[str, Any]) -> None:
    """Start a cluster that listens to this machine alone: Ray does so where it is told that it is no cluster."""
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ.setdefault(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0")
    ray.init(address="local", include_dashboard=False, **quiet)


def refuse_what_never_fits(actors: int, cpus: float, gpus: float) -> None:
    """Refuse actors for which no machine has room, and warn if not all fit at once."""
    fits = 0.0
    for node in ray.nodes():
        has = node["Resources"] if node["Alive"] else {}
        rooms = [has.get(kind, 0.0) // wanted for kind, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted]
        fits += min(rooms, default=float(actors)) if node["Alive"] else 0
    if not fits:
        have = ray.cluster_resources()
        raise InputError(
            f"no machine of the cluster has room for an actor with {cpus:g} CPUs and {gpus:g} GPUs; together they have {have.get('CPU', 0):g} "
            f"and {have.get('GPU', 0):g}. Ask for less with cpus_per_actor and gpus_per_actor, or add such a machine first"
        )
    if fits < actors:
        warnings.warn(
            f"{fits:g} of {actors} actors fit into the cluster as it is; the others join when there is room",
            stacklevel=4,
        )
