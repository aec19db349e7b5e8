"""A stream: what is to be asked, what is still missing; and a batch whose queries have fates of their own."""

import pytest
from helpers.meter import grid, metered, query, rows, states
from helpers.servers import OpenAIScript, Reply, json_reply, scripted

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BackendTimeout, BackendUnavailable, BadAnswer, BudgetExceeded, InputError, QueryRefused
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.inflight import Ask
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.sending import Stream
from pbsdk.testing import FakeBackend
from pbsdk_backends.openai import OpenAIBackend

BATCH = 32


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


class Moody:
    """A server that treats texts by their number, the first `times` times that it is asked for them."""

    def __init__(self, fates, times=1):
        self.script = OpenAIScript(completions=5)
        self.fates = fates
        self.left = dict.fromkeys(fates, times)

    def __call__(self, asked):
        text = asked.json["prompt"]
        number = next((n for n in self.fates if f"text {n} It" in text), None)
        if number is None or not self.left[number]:
            return self.script(asked)
        self.left[number] -= 1
        return self.fates[number]


def remote(server, run, budget=None, **options):
    network = {"workers": 8, "read_timeout": 2.0}
    backend = OpenAIBackend("tiny", url=f"{server.url}/v1", api="completions", top=5, **network)
    assert backend.abilities.batch_size == BATCH
    return MeteredBackend(backend, run, budget, sleep=lambda _: None, **options)


BUSY = json_reply({"error": "later"}, 429)
SILENT = Reply(fault="stall")
LOST = Reply(fault="reset")


def test_in_a_batch_of_429s_the_one_that_timed_out_alone_is_spent(tmp_path):
    fates = dict.fromkeys(range(BATCH), BUSY) | {7: SILENT}
    with scripted(Moody(fates)) as server, remote(server, tmp_path, retries=0) as lm:
        with pytest.raises(BackendTimeout):
            lm.fill(grid(BATCH, 1))
        assert states(lm) == {"reserved": BATCH, "sent": BATCH, "failed": BATCH - 1, "unknown": 1}
        assert rows(lm, "SELECT state, note, count(*) FROM records WHERE note LIKE 'Backend%' GROUP BY 1") == [
            ("failed", "BackendUnavailable", BATCH - 1),
            ("unknown", "BackendTimeout", 1),
        ]
        (report,) = lm.audit().phases
        assert (report.passes, report.attempts, report.failed, report.unknown) == (1, BATCH, BATCH - 1, 1)
        lm.ledger.verify()


def test_what_was_answered_beside_them_is_kept_and_the_rest_asked_again(tmp_path):
    fates = dict.fromkeys(range(10), BUSY) | {3: LOST}
    with scripted(Moody(fates)) as server, remote(server, tmp_path) as lm:
        assert len(lm.fill(grid(BATCH, 1))) == BATCH
        again = BATCH + 10
        assert states(lm) == {"reserved": again, "sent": again, "failed": 9, "unknown": 1, "done": BATCH}
        lm.ledger.verify()


def test_what_a_server_refuses_for_good_is_not_asked_again_and_said_when_the_rest_is_answered(tmp_path):
    fates = dict.fromkeys(range(4), BUSY) | {1: json_reply({"error": "too long"}, 400)}
    with scripted(Moody(fates)) as server, remote(server, tmp_path) as lm:
        with pytest.raises(QueryRefused, match="too long"):
            lm.fill(grid(BATCH, 1))
        assert states(lm) == {"reserved": BATCH + 3, "sent": BATCH + 3, "failed": 4, "done": BATCH - 1}
        lm.ledger.verify()


def test_a_retry_that_the_budget_refuses_says_what_was_sent(tmp_path):
    fates = dict.fromkeys(range(BATCH), BUSY)
    with scripted(Moody(fates, times=3)) as server, remote(server, tmp_path, QueryBudget(attempts=2 * BATCH)) as lm:
        with pytest.raises(BudgetExceeded) as refused:
            lm.fill(grid(BATCH, 1))
        assert (refused.value.sent, refused.value.kept) == (2 * BATCH, 0)
        assert "None of it was sent" not in str(refused.value)
        assert "64 queries were sent before that, retries included, and 0 answers came and are kept" in str(
            refused.value
        )
        assert isinstance(refused.value.__cause__, BackendUnavailable)


def test_a_retry_refused_after_answers_says_how_many_are_kept(tmp_path):
    failures = [None, BackendUnavailable("busy")]
    lm = metered(tmp_path, batch_size=2, budget=QueryBudget(attempts=4), failures=failures)
    with pytest.raises(BudgetExceeded, match=r"4 queries were sent .* 2 answers came") as refused:
        lm.fill(grid(4, 1))
    assert "QueryBudget(attempts=6)" in str(refused.value)
    assert len(lm.fill(grid(2, 1))) == 2


class Partly(FakeBackend):
    """A batch of which something was answered, and the rest failed each in its way; then it works."""

    def __init__(self, error, **fates):
        super().__init__(vocabulary_size=50)
        self.error, self.fates = error, fates

    def fill(self, queries, tokens=None):
        answers = super().fill(queries, tokens)
        error, self.error = self.error, None
        if error is None:
            return answers
        error.answered = {0: answers[0]}
        error.failures = self.fates["failures"]
        raise error


@pytest.mark.parametrize(
    ("error", "kind"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (InputError("odd"), InputError), (BackendTimeout("lost"), None)],
    ids=["interrupt", "input", "time-out"],
)
def test_whatever_ends_a_batch_the_answers_are_kept_and_each_query_has_its_own_fate(tmp_path, error, kind):
    failures = {1: BackendTimeout("lost"), 2: BackendUnavailable("never sent")}
    lm = MeteredBackend(Partly(error, failures=failures), tmp_path, sleep=lambda _: None, retries=0)
    with pytest.raises(kind or BackendTimeout):
        lm.fill(grid(4, 1))
    fate = dict(rows(lm, "SELECT example, state FROM records WHERE state IN ('done', 'failed', 'unknown')"))
    others = "failed" if kind is InputError else "unknown"
    assert [fate[Ask.of("", q).example] for q in grid(4, 1)] == ["done", "unknown", "failed", others]
    lm.ledger.verify()


def test_a_wrong_answer_ran_whatever_became_of_the_others(tmp_path):
    refused = QueryRefused("no", answered={0: None})
    lm = metered(tmp_path, retries=0, failures=[refused])
    with pytest.raises(BadAnswer):
        lm.fill(grid(3, 1))
    assert states(lm) == {"reserved": 3, "sent": 3, "unknown": 1, "failed": 2}
