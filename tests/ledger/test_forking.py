"""Forking beside an open ledger: no child is stuck, no session is opened twice, no connection is carried over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import pytest
from helpers.meter import grid, metered, query, rows, states

from pbsdk.ledger import forking
from pbsdk.ledger.mark import read_mark
from pbsdk.ledger.verifier import verify_run

PATIENCE = 60
FORKS, THREADS = 20, 8


def _forked(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent judges
            os._exit(1)
    return child


def _ends(*children):
    """Wait for children, kill those that are stuck, and return how each ended."""
    limit, codes = time.monotonic() + PATIENCE, []
    for child in children:
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < limit:
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
        codes.append(os.waitstatus_to_exitcode(done[1]))
    return codes


def _ask_in_threads(lm, number):
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda i: lm.fill([query(100 * number + i), query(7)]), range(THREADS))
        assert sum(map(len, answers)) == 2 * THREADS


def test_the_threads_of_a_forked_child_share_one_session(tmp_path):
    lm = metered(tmp_path, budget=None)
    lm.fill([query(7)])
    children = [_forked(lambda n=n: _ask_in_threads(lm, n)) for n in range(1, FORKS + 1)]
    assert _ends(*children) == [0] * FORKS
    assert rows(lm, "SELECT count(*) FROM records WHERE state = 'opened'") == [(FORKS + 1,)]
    assert states(lm)["done"] == FORKS * THREADS + 1
    assert "unknown" not in states(lm)
    lm.ledger.verify()


def test_forking_while_threads_use_the_ledger_leaves_nobody_stuck(tmp_path):
    lm = metered(tmp_path, budget=None, batch_size=1)
    over = threading.Event()
    asked = [0] * THREADS

    def work(thread):
        while not over.is_set():
            lm.fill([query(10_000 * (thread + 1) + asked[thread])])
            lm.audit()
            asked[thread] += 1

    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(work, thread) for thread in range(THREADS)]
        children = []
        for number in range(1, 17):
            children.append(_forked(lambda n=number: _ask_in_threads(lm, n)))
            time.sleep(0.02)
        codes = _ends(*children)
        over.set()
        for job in jobs:
            job.result()
    assert codes == [0] * 16
    assert "unknown" not in states(lm)
    assert states(lm)["done"] == sum(asked) + 16 * THREADS + 1
    lm.ledger.verify()


def test_workers_of_a_server_that_loaded_the_model_before_it_forked_share_a_run_folder(tmp_path):
    """A master opens the folder, asks, forks workers, restarts those that die, and asks nothing more."""
    lm = metered(tmp_path, budget=None, batch_size=1)
    lm.fill([query(7)])

    def serve(number, dies):
        _ask_in_threads(lm, number)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        lm.close()

    workers = [_forked(lambda n=n: serve(n, dies=n == 1)) for n in (1, 2, 3)]
    assert _ends(*workers) == [-signal.SIGKILL, 0, 0]
    assert _ends(_forked(lambda: serve(1, dies=False)), _forked(lambda: serve(4, dies=False))) == [0, 0]
    assert "unknown" not in states(lm)
    assert states(lm)["done"] == 4 * THREADS + 1
    assert rows(lm, "SELECT count(*) FROM records WHERE state = 'opened'") == [(6,)]
    lm.ledger.verify()
    lm.close()
    assert list((tmp_path / "sessions").iterdir()) == []


def test_a_child_of_a_child_has_a_session_of_its_own(tmp_path):
    lm = metered(tmp_path, budget=None)

    def parent():
        _ask_in_threads(lm, 1)
        assert _ends(_forked(lambda: _ask_in_threads(lm, 2))) == [0]
        _ask_in_threads(lm, 3)

    assert _ends(_forked(parent)) == [0]
    assert rows(lm, "SELECT count(*) FROM records WHERE state = 'opened'") == [(3,)]
    assert "unknown" not in states(lm)
    assert lm.ledger.verify().answers == 3 * THREADS + 1


def test_the_mark_is_kept_by_parent_and_children(tmp_path):
    lm = metered(tmp_path, budget=None)
    lm.fill([query(1)])
    assert _ends(_forked(lambda: _ask_in_threads(lm, 2))) == [0]
    assert read_mark(tmp_path).records <= lm.ledger.verify().records
    lm.fill([query(3)])
    assert read_mark(tmp_path).head == lm.ledger.verify().head


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_child_inherits_no_file_of_the_ledger(tmp_path):
    lm = metered(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda i: lm.fill([query(i)]), range(4)))
        lm.fill(grid(2, 2))

        def look():
            files = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
            assert not [file for file in files if file.is_relative_to(tmp_path)]

        assert _ends(_forked(look)) == [0]
    lm.fill(grid(3, 2))
    lm.ledger.verify()


def test_a_fork_waits_for_a_transaction_of_another_thread(tmp_path):
    lm = metered(tmp_path)
    inside, over = threading.Event(), threading.Event()

    def hold():
        with lm.ledger.rehearsal():
            inside.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(PATIENCE)
    threading.Timer(0.3, over.set).start()
    before = time.monotonic()
    child = _forked(lambda: lm.fill([query(1)]))
    assert time.monotonic() - before > 0.2
    assert _ends(child) == [0]
    thread.join()
    lm.ledger.verify()


def test_a_fork_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(forking, "_PATIENCE", 0.1)
    lm = metered(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(forking.enter).result()
        assert _ends(_forked(lambda: None)) == [0]
        forking.leave(thread)
    lm.fill([query(1)])


def _worker(lm, number):
    _ask_in_threads(lm, number)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing_share_a_run_folder(tmp_path, method):
    lm = metered(tmp_path, budget=None)
    lm._sender._sleep = time.sleep
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=_worker, args=(lm, n)) for n in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert states(lm)["done"] == 2 * THREADS + 1
    assert verify_run(tmp_path).answers == 2 * THREADS + 1


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_workers_of_joblib_share_a_run_folder(tmp_path, backend):
    lm = metered(tmp_path, budget=None)
    joblib.Parallel(2, backend=backend)(joblib.delayed(_worker)(lm, n) for n in (1, 2))
    assert states(lm)["done"] == 2 * THREADS + 1
    lm.ledger.verify()
