"""A stream: what is to be asked, and what is still missing."""

from helpers.meter import query

from pbsdk.backend import MaskDistribution
from pbsdk.ledger.inflight import Ask
from pbsdk.metering.sending import Stream


def test_a_stream_asks_for_each_unknown_key_once_and_for_its_first_reason():
    asks = [Ask.of(key, query(example)) for example, key in enumerate("abcbca")]
    stream = Stream(1, asks, known={"a"})
    assert stream.unknown == [asks[1], asks[2]]
    assert stream.missing == 2
    stream.known.add("c")
    assert stream.missing == 1


def test_what_came_just_now_is_given_out_and_not_read_again():
    asks = [Ask.of(key, query(example)) for example, key in enumerate("abc")]
    stream = Stream(1, asks, known={"a", "b", "c"})
    stream.fresh["b"] = MaskDistribution.from_logprobs([-0.105, -2.303])
    assert stream.recallable(0) == asks[:1]
    assert stream.recallable(2) == asks[2:]
