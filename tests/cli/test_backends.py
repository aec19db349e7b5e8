"""`pbsdk backends`."""

import json

from helpers.commands import called


def test_backends_lists_what_connect_knows():
    names = {backend["name"] for backend in json.loads(called("backends", "--json").stdout)}
    assert {"fake", "local", "smollm2"} <= names
    assert "fake" in called("backends").stdout
