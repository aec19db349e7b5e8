"""A gate: members share answers and one record, and none gets one pass more than the allowance."""

import pytest
from helpers.meter import grid, query, same

from pbsdk.audit.report import AuditReport
from pbsdk.audit.team import team
from pbsdk.errors import BackendTimeout, BudgetExceeded, InputError, LedgerMismatch
from pbsdk.ledger.budget import QueryBudget
from pbsdk.ledger.reader import LedgerReader
from pbsdk.ledger.shares import Member, Shares
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.gate import Gate
from pbsdk.metering.members import MembersFile
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend


@pytest.fixture
def members(tmp_path):
    return MembersFile(tmp_path / "team.json")


def opened(run, members, budget=None, **fake):
    backend = FakeBackend(vocabulary_size=50, **fake)
    return backend, Gate(backend, run, members.path, budget)


def reported(run):
    return {member.name: member for member in AuditReport.read(run).members}


def test_what_one_paid_for_the_other_recalls(run, members):
    ana, ben = members.add("ana", passes=6), members.add("ben", passes=6)
    backend, gate = opened(run, members)
    first = list(gate.admit(ana).stream(grid(2, 3)))
    second = list(gate.admit(ben).stream(grid(2, 3)))
    assert all(map(same, first, second))
    assert len(backend.asked) == 6
    assert gate.admit(ana).remaining() == {"passes": 0}
    assert gate.admit(ben).remaining() == {"passes": 6}
    gate.close()
    report = reported(run)
    assert (report["ana"].passes, report["ana"].hits) == (6, 0)
    assert (report["ben"].passes, report["ben"].hits) == (0, 6)
    verify_run(run)


def test_what_does_not_fit_is_refused_as_a_whole_and_nothing_is_sent(run, members):
    ana = members.add("ana", passes=5)
    backend, gate = opened(run, members)
    list(gate.admit(ana).stream(grid(1, 3)))
    with pytest.raises(BudgetExceeded, match="the allowance of ana: the budget of 5 passes") as refused:
        list(gate.admit(ana).stream([query(7, j) for j in range(3)]))
    assert (refused.value.limit, refused.value.asked, refused.value.left) == ("total", 3, 2)
    list(gate.admit(ana).stream([query(7, j) for j in range(2)]))
    assert len(backend.asked) == 5


def test_the_same_question_for_other_tokens_is_a_pass_of_whoever_asks(run, members):
    ana, ben = members.add("ana", passes=5), members.add("ben", passes=1)
    backend, gate = opened(run, members, chosen=True)
    import numpy as np

    list(gate.admit(ana).stream([query(1)], np.array([1, 2])))
    list(gate.admit(ben).stream([query(1)], np.array([3])))
    assert gate.admit(ben).remaining() == {"passes": 0}
    assert len(backend.asked) == 2


def test_an_allowance_outlives_the_server(run, members):
    ana = members.add("ana", passes=5)
    _, gate = opened(run, members)
    list(gate.admit(ana).stream(grid(1, 3)))
    gate.close()
    backend, gate = opened(run, members)
    assert gate.admit(ana).remaining() == {"passes": 2}
    with pytest.raises(BudgetExceeded):
        list(gate.admit(ana).stream([query(9, j) for j in range(3)]))
    assert backend.asked == []


@pytest.mark.in_postgres
def test_two_gates_over_one_run_never_give_the_last_pass_twice(run, members):
    ana = members.add("ana", passes=5)
    (one, first), (two, second) = opened(run, members), opened(run, members)
    answered = 0
    for i in range(20):
        try:
            answered += len(list((first, second)[i % 2].admit(ana).stream([query(i)])))
        except BudgetExceeded:
            continue
    assert answered == len(one.asked) + len(two.asked) == 5


def test_a_limit_that_is_changed_holds_from_the_next_request(run, members):
    ana = members.add("ana", passes=1)
    _, gate = opened(run, members)
    list(gate.admit(ana).stream([query(1)]))
    members.change("ana", passes=2)
    assert gate.admit(ana).remaining() == {"passes": 1}
    list(gate.admit(ana).stream([query(2)]))
    members.revoke("ana")
    assert gate.admit(ana) is None
    again = members.add("ana", passes=2)
    with pytest.raises(BudgetExceeded):  # a new token is no new allowance
        list(gate.admit(again).stream([query(3)]))
    gate.close()
    assert reported(run)["ana"].within


def test_a_lost_send_stays_spent_and_a_refused_one_does_not(run, members):
    from pbsdk.errors import BackendUnavailable

    ana = members.add("ana", passes=3)
    failures = [BackendTimeout("lost"), BackendUnavailable("busy"), None]
    _, gate = opened(run, members, failures=failures)
    guest = gate.admit(ana)
    for left in (2, 2):
        with pytest.raises((BackendTimeout, BackendUnavailable)):
            list(guest.stream([query(1)]))
        assert guest.remaining() == {"passes": left}
    list(guest.stream([query(1)]))
    assert guest.remaining() == {"passes": 1}
    gate.close()
    mine = reported(run)["ana"]
    assert (mine.attempts, mine.failed, mine.unknown, mine.passes) == (3, 1, 1, 2)


def test_tokens_and_money_are_limited_at_the_prices_of_all(run, members):
    ana, ben = members.add("ana", tokens=40), members.add("ben", money=0.05)
    prices = QueryBudget(passes=None, predict=None, price_per_pass=0.02)
    _, gate = opened(run, members, prices)
    with pytest.raises(BudgetExceeded, match="tokens"):
        list(gate.admit(ana).stream(grid(1, 10)))
    list(gate.admit(ben).stream([query(1), query(2)]))
    assert gate.admit(ben).remaining() == {"money": 0.01}
    with pytest.raises(BudgetExceeded, match="units of currency"):
        list(gate.admit(ben).stream([query(3)]))
    list(gate.admit(ana).stream([query(4)]))
    read = gate.admit(ana).remaining()["tokens"]
    assert 0 < read < 40
    gate.close()
    assert reported(run)["ana"].left == {"tokens": read}


def test_the_limit_of_all_together_holds_too(run, members):
    ana, ben = members.add("ana", passes=10), members.add("ben")
    _, gate = opened(run, members, QueryBudget(passes=None, predict=None, total=4))
    list(gate.admit(ana).stream(grid(1, 3)))
    with pytest.raises(BudgetExceeded, match=r"^the budget of 4 passes in all"):
        list(gate.admit(ben).stream([query(5), query(6)]))


def test_what_another_reserved_is_charged_to_whoever_sends_it(run):
    fake = {"vocabulary_size": 50, "batch_size": 1}
    ana, ben = (
        MeteredBackend(
            FakeBackend(**fake),
            run,
            None,
            member=Member(name, QueryBudget(passes=None, predict=None, total=most)),
        )
        for name, most in (("ana", 4), ("ben", 2))
    )
    slow = ana.stream(grid(1, 4))
    next(slow)  # ana has sent one, and reserved three
    assert ana.ledger.share().totals().passes == 4
    ben.fill([query(0, 2), query(0, 3)])
    assert (ana.ledger.share().totals().passes, ben.ledger.share().totals().passes) == (2, 2)
    with pytest.raises(BudgetExceeded, match="the allowance of ben"):
        ben.fill([query(0, 1)])
    assert len(list(slow)) == 3
    shares = {member.name: member.passes for member in team(ana.ledger.reader())}
    assert shares == {"ana": 2, "ben": 2}
    verify_run(run)


@pytest.mark.in_postgres
def test_the_shares_are_the_same_whether_counted_at_once_or_as_they_came(run, members):
    tokens = [members.add(name, passes=20) for name in ("ana", "ben")]
    _, gate = opened(run, members, batch_size=2, failures=[None, BackendTimeout("lost")])
    for i in range(12):
        try:
            list(gate.admit(tokens[i % 2]).stream([query(i // 3), query(i)]))
        except BackendTimeout:
            continue
    once = Shares()
    with LedgerReader(run) as reader:
        once.catch_up(reader.select)
    for token, name in zip(tokens, ("ana", "ben"), strict=True):
        assert gate.admit(token)._meter.ledger.share() == once.of(name)


def test_requests_a_minute_are_counted_over_any_sixty_seconds(run, members):
    now = [0.0]
    ana = members.add("ana", per_minute=2)
    gate = Gate(FakeBackend(), run, members.path, clock=lambda: now[0])
    guest = gate.admit(ana)
    assert guest.wait() == 0
    now[0] = 50
    assert guest.wait() == 0
    assert guest.remaining() == {"requests": 0}
    assert guest.wait() == 10
    now[0] = 60
    assert guest.wait() == 0
    assert guest.wait() == 50


def test_what_cannot_work_is_refused_before_anybody_asks(run, members):
    members.add("ben", money=1.0)
    with pytest.raises(InputError, match="price"):
        opened(run, members)
    members.revoke("ben")
    MeteredBackend(FakeBackend(seed=5), run).ledger.close()
    with pytest.raises((LedgerMismatch, InputError)):
        opened(run, members)


def test_no_token_is_in_the_run_folder(tmp_path, members):
    token = members.add("ana", passes=5)
    _, gate = opened(tmp_path / "run", members)
    list(gate.admit(token).stream(grid(1, 3)))
    gate.close()
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes()
