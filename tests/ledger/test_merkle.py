"""The tree over the records: RFC 6962's own examples, and a plain recursive tree beside it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbsdk.ledger.merkle import (
    Runs,
    consistency_runs,
    hash_runs,
    inclusion_runs,
    is_consistent,
    leaf_hash,
    root_from_path,
)

# The examples of Certificate Transparency's own tests.
LEAVES = [bytes.fromhex(leaf) for leaf in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
PATHS = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
CONSISTENT = {
    (1, 1): [],
    (1, 8): PATHS[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
HASHES = [leaf_hash(leaf) for leaf in LEAVES]


def root(leaves):
    return hash_runs(leaves, [(0, len(leaves))])[0]


# RFC 6962, sections 2.1 to 2.1.2, word for word.


def split(n):
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def mth(data):
    if not data:
        return hashlib.sha256(b"").digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    k = split(len(data))
    return hashlib.sha256(b"\x01" + mth(data[:k]) + mth(data[k:])).digest()


def path(m, data):
    if len(data) == 1:
        return []
    k = split(len(data))
    if m < k:
        return [*path(m, data[:k]), mth(data[k:])]
    return [*path(m - k, data[k:]), mth(data[:k])]


def proof(m, data):
    return subproof(m, data, known=True)


def subproof(m, data, *, known):
    if m == len(data):
        return [] if known else [mth(data)]
    k = split(len(data))
    if m <= k:
        return [*subproof(m, data[:k], known=known), mth(data[k:])]
    return [*subproof(m - k, data[k:], known=False), mth(data[:k])]


def hexed(hashes):
    return [each.hex() for each in hashes]


def test_the_published_roots_are_found():
    assert [root(HASHES[: n + 1]).hex() for n in range(8)] == ROOTS
    assert root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert hexed(mth(LEAVES[: n + 1]) for n in range(8)) == ROOTS


@pytest.mark.parametrize(("leaf", "size"), PATHS)
def test_the_published_inclusion_proofs_are_found_and_accepted(leaf, size):
    found = hash_runs(HASHES[:size], inclusion_runs(leaf, size))
    assert hexed(found) == PATHS[leaf, size] == hexed(path(leaf, LEAVES[:size]))
    assert root_from_path(HASHES[leaf], leaf, size, found).hex() == ROOTS[size - 1]


@pytest.mark.parametrize(("old", "size"), CONSISTENT)
def test_the_published_consistency_proofs_are_found_and_accepted(old, size):
    found = hash_runs(HASHES[:size], consistency_runs(old, size))
    assert hexed(found) == CONSISTENT[old, size] == hexed(proof(old, LEAVES[:size]))
    assert is_consistent(old, size, root(HASHES[:old]), root(HASHES[:size]), found)


SIZES = st.integers(1, 300).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))
RECORDS = [f"record {i}".encode() for i in range(300)]


@settings(deadline=None)
@given(SIZES, st.randoms(use_true_random=False))
def test_every_inclusion_proof_is_the_recursive_one_and_no_other_is_accepted(sizes, random):
    size, leaf = sizes[0], sizes[1] - 1
    data = RECORDS[:size]
    hashes = list(map(leaf_hash, data))
    found = hash_runs(hashes, inclusion_runs(leaf, size))
    assert found == path(leaf, data)
    assert root_from_path(hashes[leaf], leaf, size, found) == root(hashes) == mth(data)
    elsewhere, larger = random.randrange(size), size + random.randrange(1, 9)
    assert elsewhere == leaf or root_from_path(hashes[leaf], elsewhere, size, found) != root(hashes)
    assert root_from_path(hashes[leaf], larger, size, found) is None
    assert root_from_path(leaf_hash(b"another"), leaf, size, found) != root(hashes)
    for wrong in spoiled(found, random):
        assert root_from_path(hashes[leaf], leaf, size, wrong) != root(hashes)


@settings(deadline=None)
@given(SIZES, st.randoms(use_true_random=False))
def test_every_consistency_proof_is_the_recursive_one_and_no_other_is_accepted(sizes, random):
    size, old = sizes
    data = RECORDS[:size]
    hashes = list(map(leaf_hash, data))
    found, before, after = hash_runs(hashes, consistency_runs(old, size)), root(hashes[:old]), root(hashes)
    assert found == proof(old, data)
    assert is_consistent(old, size, before, after, found)
    for wrong in spoiled(found, random):
        assert not is_consistent(old, size, before, after, wrong)
    rewritten = [leaf_hash(b"rewritten"), *hashes[1:]]
    if old < size:
        forged = hash_runs(rewritten, consistency_runs(old, size))
        assert not is_consistent(old, size, before, root(rewritten), forged)
        assert not is_consistent(old, size, after, before, found)
    assert not is_consistent(size + 1, size, before, after, found)
    assert not is_consistent(0, size, before, after, found)


def spoiled(hashes, random):
    """Yield lists that differ from this one in a hash, or are one longer or shorter."""
    yield [*hashes, leaf_hash(b"one too many")]
    if hashes:
        at = random.randrange(len(hashes))
        yield [*hashes[:at], *hashes[at + 1 :]]
        yield [*hashes[:at], leaf_hash(b"wrong"), *hashes[at + 1 :]]


def test_memory_grows_with_the_tree_s_height_alone():
    runs = Runs([*consistency_runs(5_000, 20_000)])
    for number in range(20_000):
        runs.add(leaf_hash(str(number).encode()))
    held = sum(len(tree._parts) for tree in runs._trees.values())
    assert held <= 2 * len(runs._trees) <= 60
