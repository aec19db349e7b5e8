"""Cores are counted from what the system tells, here in a folder that stands in for it."""

import itertools

import pytest
import torch

from pbsdk.errors import InputError
from pbsdk_backends._local import threads
from pbsdk_backends._local.threads import Cores, count_cores, settle_threads


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine of four logical cores on two physical ones; between two looks each core is idle as told."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3}, raising=False)
    idle = [1.0, 1.0, 1.0, 1.0]
    for core in range(4):
        place = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{core % 2},{core % 2 + 2}\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)

    def look(ticks):
        lines = [
            f"cpu{core} {round(ticks * (1 - idle[core]))} 0 0 {round(ticks * idle[core])} 0 0 0 0 0 0"
            for core in range(4)
        ]
        (tmp_path / "proc/stat").write_text("\n".join(["cpu 1 2 3 4 5 6 7 8", *lines, "intr 5"]))

    ticks = itertools.count(100, 100)
    look(0)
    monkeypatch.setattr(threads.time, "sleep", lambda _seconds: look(next(ticks)))
    return tmp_path, idle


def test_siblings_on_one_core_count_once(system):
    assert count_cores(system[0]) == Cores(2, 4.0, 2.0)
    assert count_cores(system[0]).threads == 2


def test_busy_cores_get_no_thread(system):
    root, idle = system
    idle[:] = [0.1, 0.9, 0.0, 1.0]
    assert count_cores(root).free == pytest.approx(1.0)
    assert count_cores(root).threads == 1


def test_a_machine_without_a_free_core_still_gets_one_thread(system):
    root, idle = system
    idle[:] = [0.0] * 4
    assert count_cores(root).threads == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [("sys/fs/cgroup/cpu.max", "150000 100000"), ("sys/fs/cgroup/jobs/mine/cpu.max", "100000 100000")],
)
def test_a_containers_limit_counts(system, file, content):
    root, _ = system
    (root / "proc/self/cgroup").write_text("0::/jobs/mine\n")
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(content)
    assert count_cores(root).threads == 1


def test_the_limit_of_the_older_control_groups_counts(system):
    place = system[0] / "sys/fs/cgroup/cpu"
    place.mkdir()
    (place / "cpu.cfs_quota_us").write_text("100000\n")
    (place / "cpu.cfs_period_us").write_text("100000\n")
    assert count_cores(system[0]).limit == 1.0


def test_a_group_without_a_limit_limits_nothing(system):
    (system[0] / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert count_cores(system[0]).limit == 4.0


def test_a_system_that_tells_nothing_limits_nothing(system, tmp_path):
    assert count_cores(tmp_path / "nowhere") == Cores(4, 4.0, 4.0)


@pytest.fixture
def kept():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_the_number_asked_for_is_the_number(kept):
    settle_threads(kept + 1)
    assert torch.get_num_threads() == kept + 1
    with pytest.raises(InputError, match="threads=0 must be at least 1"):
        settle_threads(0)


@pytest.mark.parametrize(
    ("by_hand", "environment", "chosen"), [(None, {}, 1), (5, {}, 5), (None, {"OMP_NUM_THREADS": "3"}, 2)]
)
def test_a_number_that_somebody_has_set_stays(by_hand, environment, chosen, kept, monkeypatch):
    for name in threads.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "_torchs_own", 2)
    monkeypatch.setattr(threads, "_ours", 2)
    monkeypatch.setattr(threads, "count_cores", lambda: Cores(1, 1.0, 1.0))
    if by_hand:
        torch.set_num_threads(by_hand)
    settle_threads(None)
    assert torch.get_num_threads() == chosen


def test_what_was_busy_once_may_be_free_later(kept, monkeypatch):
    for name in threads.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "_torchs_own", 2)
    monkeypatch.setattr(threads, "_ours", 2)
    for free, chosen in ((0.2, 1), (2.0, 2), (8.0, 2)):
        monkeypatch.setattr(threads, "count_cores", lambda free=free: Cores(8, 8.0, free))
        settle_threads(None)
        assert torch.get_num_threads() == chosen
