"""Which queries make a row together, and what is read apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbsdk_backends._local import tries
from pbsdk_backends._local.sharing import Beginning
from pbsdk_backends._local.tries import rows_of
from pbsdk_backends._tokens.reading import Reading

TEXTS = [[100 + text, *range(40)] for text in range(8)]
TAILS = [[200 + tail, 1, 2, 3] for tail in range(10)]
DEMONSTRATIONS = list(range(300, 500))


def nothing(_ids):
    return []


def read(*sequences):
    return [Reading(list(ids), len(ids) - 1, 0) for ids in sequences]


def beginnings(rows):
    found = {}
    for row in rows:
        one = row.after
        while one:
            found[one.ids] = one
            one = one.after
    return found


def tokens_run(rows):
    read_apart = (len(one.ids) - len(one.after.ids if one.after else ()) for one in beginnings(rows).values())
    return sum(len(row.ids) for row in rows) + sum(read_apart)


def what_is_seen(row, ask):
    before = list(row.after.ids) if row.after else []
    if row.sight is None:
        return before + row.ids[: ask + 1]
    return before + [token for token, seen in zip(row.ids, row.sight[ask], strict=True) if seen]


def check(readings, rows):
    answered = {owner: what_is_seen(row, ask) for row in rows for owner, ask in zip(row.owners, row.asks, strict=True)}
    assert answered == {owner: reading.ids for owner, reading in enumerate(readings)}


def test_demonstrations_are_read_once_and_each_text_once():
    readings = read(*(DEMONSTRATIONS + text + tail for text in TEXTS for tail in TAILS))
    rows = rows_of(readings, limit=4096, found=nothing)
    check(readings, rows)
    assert list(beginnings(rows)) == [tuple(DEMONSTRATIONS)]
    assert tokens_run(rows) == len(DEMONSTRATIONS) + sum(map(len, TEXTS)) + len(TEXTS) * sum(map(len, TAILS))


def test_what_all_prompts_share_comes_before_what_one_prompt_shares_over_all_texts():
    names = list(range(600, 700))
    own = [[700 + prompt, *range(60)] for prompt in range(10)]
    readings = read(*(names + own[prompt] + text + TAILS[prompt] for text in TEXTS for prompt in range(10)))
    rows = rows_of(readings, limit=4096, found=nothing)
    check(readings, rows)
    assert {len(ids) for ids in beginnings(rows)} == {len(names), len(names) + 61}
    assert tokens_run(rows) == len(names) + 10 * 61 + len(TEXTS) * 10 * (41 + 4)


def test_without_demonstrations_there_is_one_tree_an_example_and_nothing_is_read_apart():
    readings = read(*(text + tail for text in TEXTS for tail in TAILS))
    rows = rows_of(readings, limit=4096, found=nothing)
    check(readings, rows)
    assert len(rows) == len(TEXTS)
    assert not beginnings(rows)


def test_what_is_too_short_to_pay_is_read_again():
    readings = read(*([1, 2, *text, *tail] for text in TEXTS for tail in TAILS))
    rows = rows_of(readings, limit=4096, found=nothing)
    assert len(rows) == len(TEXTS)
    assert not beginnings(rows)


def test_layouts_of_a_pair_share_what_they_can():
    first, second = list(range(30)), list(range(50, 80))
    readings = read(*([*first, 900 + layout, *second, *tail] for layout in range(3) for tail in TAILS[:3]))
    (row,) = rows_of(readings, limit=4096, found=nothing)
    check(readings, [row])
    assert len(row.ids) == 30 + 3 * 31 + 9 * 4


def test_a_beginning_at_hand_is_used_for_one_query():
    readings = read(DEMONSTRATIONS + TEXTS[0] + TAILS[0])
    (alone,) = rows_of(readings, limit=4096, found=nothing)
    assert alone.after is None
    (row,) = rows_of(readings, limit=4096, found=lambda ids: [len(DEMONSTRATIONS)])
    check(readings, [row])
    assert row.after == Beginning(tuple(DEMONSTRATIONS))


def test_a_beginning_of_the_call_before_is_read_apart():
    before = [DEMONSTRATIONS + TEXTS[1] + TAILS[0]]
    readings = read(*(DEMONSTRATIONS + TEXTS[0] + tail for tail in TAILS))
    (row,) = rows_of(readings, limit=4096, found=nothing, before=before)
    check(readings, [row])
    assert row.after == Beginning(tuple(DEMONSTRATIONS))


def test_a_text_of_the_call_before_is_not_taken_for_demonstrations():
    before = sorted(TEXTS[0] + tail for tail in TAILS[:5])
    (row,) = rows_of(read(*(TEXTS[0] + tail for tail in TAILS[5:])), limit=4096, found=nothing, before=before)
    assert row.after is None


def test_nothing_is_cut_where_no_cache_can_be_used_and_no_tree_exceeds_its_limit():
    readings = read(*(DEMONSTRATIONS[:50] + text + tail for text in TEXTS for tail in TAILS))
    for limit in (1, 100, 120, 400):
        rows = rows_of(readings, limit=limit, found=None, before=[reading.ids for reading in readings])
        check(readings, rows)
        assert not beginnings(rows)
        assert all(len(row.ids) <= limit for row in rows if row.sight is not None)


def test_queries_nested_in_each_other_without_end_are_still_answered():
    readings = read(*([7] * length for length in range(1, 700)))
    check(readings, rows_of(readings, limit=64, found=nothing))


sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


@given(sequences, st.integers(1, 30), sequences, st.booleans())
def test_whatever_is_shared_each_query_sees_itself(asked, limit, before, free):
    readings = read(*asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "CUT", -5 if free else 1)
        patch.setattr(tries, "AGAIN", 2)
        rows = rows_of(readings, limit=limit, found=nothing, before=sorted(before))
    check(readings, rows)
    for one in beginnings(rows).values():
        assert one.after is None or one.ids[: len(one.after.ids)] == one.after.ids
