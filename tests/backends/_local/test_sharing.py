"""Prompts that share a text, in one row."""

from pbsdk_backends._local.sharing import tree
from pbsdk_backends._tokens.reading import Reading


def test_a_tree_keeps_positions_and_sight_apart():
    readings = [Reading([7, 8, 1, 2], 3, 0), Reading([7, 8, 3], 2, 0), Reading([7, 8], 1, 0)]
    row = tree([0, 1, 2], readings)
    assert len(row.ids) == 5
    assert row.depths is not None
    assert row.sight is not None
    for owner, ask_at in zip(row.owners, row.asks, strict=True):
        seen = [node for node in range(5) if row.sight[ask_at, node]]
        assert [row.ids[node] for node in seen] == readings[owner].ids
        assert [row.depths[node] for node in seen] == list(range(len(seen)))
