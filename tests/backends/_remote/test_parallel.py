"""A batch over threads: order, one error for all, what came is kept, and Ctrl-C."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.errors import BackendError, BackendTimeout, BackendUnavailable, BadAnswer, InputError, QueryRefused
from pbsdk_backends._remote.parallel import Job, Pace, run_jobs


def answer(number: int) -> MaskDistribution:
    return MaskDistribution(np.array([number], dtype=np.uint16), np.array([0]))


def raising(error: Exception):
    def ask():
        raise error

    return ask


def run(jobs, workers=4, deadline=30.0):
    return run_jobs(jobs, workers=workers, deadline=deadline, pace=Pace(None))


def test_answers_come_in_the_order_of_the_batch_whoever_is_first():
    gate = threading.Event()

    def first():
        assert gate.wait(30)
        return [answer(0), answer(1)]

    def last():
        gate.set()
        return [answer(2)]

    assert [int(a.codes[0]) for a in run([Job([0, 1], first), Job([2], last)])] == [0, 1, 2]


def test_no_more_than_the_workers_run_at_once():
    lock, running, most = threading.Lock(), 0, 0

    def ask(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return [answer(number)]

    run([Job([n], lambda n=n: ask(n)) for n in range(30)], workers=3)
    assert most == 3


def failed(*outcomes) -> BackendError:
    jobs = [
        Job([place], raising(outcome) if isinstance(outcome, Exception) else lambda place=place: [answer(place)])
        for place, outcome in enumerate(outcomes)
    ]
    with pytest.raises(BackendError) as caught:
        run(jobs)
    return caught.value


def test_what_came_is_kept_and_the_gravest_error_stands_for_all():
    error = failed(
        BackendUnavailable("wait", retry_after=3), None, BadAnswer("odd", retry_after=1), None, BackendTimeout("lost")
    )
    assert type(error) is BadAnswer
    assert sorted(error.answered) == [1, 3]
    assert [int(error.answered[place].codes[0]) for place in (1, 3)] == [1, 3]
    assert (error.retryable, error.may_have_run, error.retry_after) == (True, True, 3)
    assert "3 of 5 requests failed" in str(error)
    assert {place: type(why) for place, why in error.failures.items()} == {
        0: BackendUnavailable, 2: BadAnswer, 4: BackendTimeout,
    }  # fmt: skip


def test_one_that_is_retryable_makes_the_batch_worth_asking_again():
    error = failed(QueryRefused("no"), BackendUnavailable("wait"))
    assert (type(error), error.retryable, error.may_have_run) == (BackendUnavailable, True, False)
    assert not failed(QueryRefused("no"), QueryRefused("no")).retryable


def test_part_of_a_request_is_kept_at_its_place():
    half = BackendTimeout("half", answered={1: answer(7)})
    with pytest.raises(BackendTimeout) as caught:
        run([Job([0], lambda: [answer(0)]), Job([1, 2], raising(half))])
    assert {place: int(a.codes[0]) for place, a in caught.value.answered.items()} == {0: 0, 2: 7}


def test_each_query_of_a_request_fails_in_its_own_way():
    half = BackendTimeout("half", answered={0: answer(7)}, failures={2: QueryRefused("no")})
    with pytest.raises(BackendTimeout) as caught:
        run([Job([0], raising(BackendUnavailable("wait"))), Job([1, 2, 3], raising(half))])
    assert {place: type(why) for place, why in caught.value.failures.items()} == {
        0: BackendUnavailable, 2: BackendTimeout, 3: QueryRefused,
    }  # fmt: skip


def test_another_error_passes_through_as_it_is():
    with pytest.raises(InputError, match="wrong"):
        run([Job([0], raising(InputError("wrong")))])


def test_an_input_that_is_refused_loses_nothing_of_the_others():
    begun, refuse = threading.Event(), threading.Event()

    def slow():
        begun.set()
        refuse.wait(30)
        return [answer(1)]

    def refused():
        assert begun.wait(30)
        threading.Timer(0.05, refuse.set).start()
        raise InputError("wrong")

    jobs = [Job([0], refused), Job([1], slow), *(Job([n], lambda: [answer(9)]) for n in (2, 3))]
    with pytest.raises(InputError) as caught:
        run_jobs(jobs, workers=2, deadline=30, pace=Pace(2))
    assert list(caught.value.answered) == [1]
    assert {place: type(why) for place, why in caught.value.failures.items()} == {
        2: BackendUnavailable, 3: BackendUnavailable,
    }  # fmt: skip


def test_requests_keep_their_distance():
    moments = []
    pace = Pace(100)

    def ask():
        moments.append(time.monotonic())
        return [answer(0)]

    start = time.monotonic()
    run_jobs([Job([n], ask) for n in range(20)], workers=8, deadline=30, pace=pace)
    assert len(moments) == 20
    assert max(moments) - start >= 0.19 - 0.005


def test_an_interrupt_stops_what_has_not_begun_and_keeps_what_came(monkeypatch):
    """Ctrl-C reaches the main thread while it waits; here the wait itself raises it."""
    from pbsdk_backends._remote import parallel as _parallel

    asked = []
    begun, release = threading.Event(), threading.Event()

    def slow(number):
        asked.append(number)
        if number == 1:
            begun.set()
            assert release.wait(30)
        return [answer(number)]

    original = _parallel._Batch._keep

    def keep(self, number, outcome):
        original(self, number, outcome)
        if number == 0:
            assert begun.wait(30)
            threading.Timer(0.05, release.set).start()
            raise KeyboardInterrupt

    monkeypatch.setattr(_parallel._Batch, "_keep", keep)
    # One worker: when the interrupt comes, the second job is under way and the rest has not begun.
    with pytest.raises(KeyboardInterrupt) as caught:
        run([Job([n], lambda n=n: slow(n)) for n in range(6)], workers=1)
    assert sorted(caught.value.answered) == [0, 1]
    assert asked == [0, 1]
    # What has not begun certainly did not run.
    assert {place: why.may_have_run for place, why in caught.value.failures.items()} == dict.fromkeys(
        range(2, 6), False
    )


@pytest.fixture
def impatient(monkeypatch):
    """Requests that hang until the test is over, and little patience with them."""
    from pbsdk_backends._remote import parallel as _parallel

    monkeypatch.setattr(_parallel, "GRACE", 0.05)
    over = threading.Event()

    def stuck():
        over.wait(60)
        return [answer(0)]

    yield stuck
    over.set()
    end = time.monotonic() + 30
    while _parallel._lost:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_thread_that_is_lost_is_replaced(impatient):
    with pytest.raises(BackendTimeout) as caught:
        run([Job([0], impatient), Job([1], lambda: [answer(1)])], workers=1, deadline=0.1)
    assert sorted(caught.value.answered) == [1]


def test_only_so_many_threads_are_lost_and_then_it_says_so(impatient, monkeypatch):
    from pbsdk_backends._remote import parallel as _parallel

    monkeypatch.setattr(_parallel, "MOST_LOST", 3)
    sent = []

    def hang(place):
        sent.append(place)
        return impatient()

    with pytest.raises(BackendTimeout) as caught:
        run([Job([n], lambda n=n: hang(n)) for n in range(10)], workers=2, deadline=0.1)
    assert len(sent) == len(_parallel._lost) == 4  # two hung, two took their place, and nobody theirs
    assert "10 of 10" in str(caught.value)
    with pytest.raises(BackendUnavailable, match="4 requests of this process never came back") as caught:
        run([Job([0], lambda: [answer(0)])])
    assert not caught.value.may_have_run
