"""`pbsdk backends`: the backends that are registered, and whether they can be imported."""

from __future__ import annotations

from dataclasses import asdict

from pbsdk.cli._common import AsJson, show

__all__ = ["backends"]


def backends(*, as_json: AsJson = False) -> None:
    """List the backends that connect() knows, and what keeps any of them from working.

    Examples:
        pbsdk backends
        pbsdk backends --json
    """
    from pbsdk.connecting import available

    found = available()
    text = "\n".join(f"{backend.name:<14}{backend.problem or backend.about}" for backend in found)
    show(text, [asdict(backend) for backend in found], as_json=as_json)
