"""Following a partition that another process writes: woken, not polling, and never deceived."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.log_segments import StreamEnv, number_in, open_stream_env
from tests.support.pausing import pause

from leasehold.events import Start
from leasehold.log import PartitionReader, segment_watcher
from leasehold.log.segment_watcher import SegmentWatcher

SOON = timedelta(seconds=120)
ROOT = Path(__file__).parents[3]


@pytest.fixture
def env(tmp_path: Path) -> Iterator[StreamEnv]:
    made = open_stream_env(tmp_path)
    yield made
    made.close()


class Process:
    """An owner in a process of its own."""

    def __init__(self, env: StreamEnv) -> None:
        self._url = env.url
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.log_segments", env.url, "orders", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.answer() == "ready"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def do(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        if number is signal.SIGSTOP:
            pause(self._process.pid, self._url)
        else:
            self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def processes(env: StreamEnv) -> Iterator[list[Process]]:
    made: list[Process] = []
    yield made
    for process in made:
        process.end()


@pytest.fixture
def owner(env: StreamEnv, processes: list[Process]) -> Process:
    processes.append(Process(env))
    return processes[-1]


def heir_of(env: StreamEnv, processes: list[Process]) -> Process:
    processes.append(Process(env))
    return processes[-1]


def next_of(reader: PartitionReader, count: int) -> list[int]:
    """The next events, as they come."""
    found: list[int] = []
    while len(found) < count and reader.wait(SOON):
        batch = reader.read()
        assert batch is not None
        found += (number_in(event) for event in batch)
    return found


@pytest.mark.process
def test_events_of_another_process_wake_the_reader(
    env: StreamEnv, owner: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the kernel's word the first look would come after the time limit of this test.
    monkeypatch.setattr(segment_watcher, "SHORTEST_S", 3600.0)
    monkeypatch.setattr(segment_watcher, "LONGEST_S", 3600.0)
    assert owner.do("add 2") == "2"
    reader = env.reader()
    assert next_of(reader, 2) == [0, 1]

    for number in range(2, 12):
        owner.tell("add 1")
        assert next_of(reader, 1) == [number]
        owner.answer()


@pytest.mark.process
def test_a_follower_gets_everything_over_the_borders_of_segments(
    env: StreamEnv, owner: Process
) -> None:
    got: list[int] = []
    reader = env.reader()

    def run() -> None:
        for batch in reader.batches(follow=True):
            got.extend(number_in(event) for event in batch)
            if len(got) == 30:
                return

    following = threading.Thread(target=run)
    following.start()
    for _ in range(5):
        for _ in range(3):
            owner.do("add 2")
        owner.do("roll")
    following.join(timeout=120)

    assert got == list(range(30))


@pytest.mark.spec("F8")
@pytest.mark.process
def test_a_follower_goes_on_after_the_owner_was_killed(
    env: StreamEnv, owner: Process, processes: list[Process]
) -> None:
    owner.do("add 3")
    reader = env.reader()
    assert next_of(reader, 3) == [0, 1, 2]
    owner.do("unacknowledged 4 300000")
    owner.send(signal.SIGKILL)

    heir = heir_of(env, processes)
    taken = int(heir.do("take"))
    assert int(heir.do("add 2")) == taken + 2

    # What was not acknowledged may survive the recovery or not; then it is there for everybody.
    assert taken in {3, 7}
    assert next_of(reader, taken - 1) == list(range(3, taken + 2))
    assert next_of(env.reader(), taken + 2) == list(range(taken + 2))


@pytest.mark.spec("F8", "B5")
@pytest.mark.process
def test_bytes_of_an_owner_that_was_stopped_and_robbed_are_never_seen(
    env: StreamEnv, owner: Process, processes: list[Process]
) -> None:
    owner.do("add 3")
    reader = env.reader()
    assert next_of(reader, 3) == [0, 1, 2]
    owner.send(signal.SIGSTOP)
    owner.tell("add 5 2000")

    heir = heir_of(env, processes)
    assert heir.do("take") == "3"
    heir.do("add 2")
    owner.send(signal.SIGCONT)
    assert owner.answer() == "FencedWrite"
    heir.do("add 2")

    assert next_of(reader, 4) == [3, 4, 5, 6]
    assert reader.read() is None
    whole = [event for batch in env.reader().batches() for event in batch]
    assert [number_in(event) for event in whole] == list(range(7))
    assert all(len(event.body) < 100 for event in whole)  # the zombie's are longer


@pytest.mark.process
def test_a_reader_that_began_before_the_first_event_gets_it(env: StreamEnv, owner: Process) -> None:
    reader = env.reader(Start.latest())
    assert not reader.wait(timedelta(0))

    owner.tell("add 1")

    assert next_of(reader, 1) == [0]


def test_a_follower_ends_when_nothing_comes_for_its_time(env: StreamEnv) -> None:
    env.owner().many(1)
    reader = env.reader()

    batches = list(reader.batches(follow=True, timeout=timedelta(milliseconds=20)))

    assert [len(batch) for batch in batches] == [1]


@pytest.mark.parametrize("state", ["open", "closed", "none"])
def test_an_idle_second_costs_a_handful_of_looks(env: StreamEnv, state: str) -> None:
    if state != "none":
        owner = env.owner()
        owner.many(1)
        if state == "closed":
            owner.roll()
    reader = env.reader(Start.latest())
    before = reader.polls

    assert not reader.wait(timedelta(seconds=1.2))

    assert 2 <= reader.polls - before <= 9


@pytest.mark.process
def test_without_watches_of_the_kernel_the_reader_looks_now_and_then(
    env: StreamEnv, owner: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(24, "no instance left")

    monkeypatch.setattr(segment_watcher, "INotify", none_left)
    owner.do("add 1")
    reader = env.reader(Start.latest())

    owner.tell("add 1")

    assert next_of(reader, 1) == [1]


def test_a_watch_wakes_when_its_file_changes_and_again_when_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    path.write_bytes(b"")
    watch = SegmentWatcher()
    watch.watch([str(path)])
    assert watch.watching

    path.write_bytes(b"more")
    assert watch.sleep(20.0)
    assert not watch.sleep(0.0)

    path.rename(tmp_path / "elsewhere")
    assert watch.sleep(20.0)
    assert not watch.watching
    watch.close()
    watch.close()


def test_a_watch_that_was_moved_keeps_its_new_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"")
    second.write_bytes(b"")
    watch = SegmentWatcher()
    watch.watch([str(first)])
    watch.watch([str(second)])
    watch.sleep(0.0)  # hears that the first one is watched no more
    first.write_bytes(b"x")
    assert not watch.sleep(0.0)

    second.write_bytes(b"x")

    assert watch.sleep(20.0)
    watch.close()


def test_sleeps_grow_up_to_a_second_and_begin_anew_when_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_watcher, "LONGEST_S", 0.08)
    watch = SegmentWatcher()
    pauses = []
    for _ in range(4):
        assert not watch.sleep(20.0)
        pauses.append(watch._pause_s)
    assert pauses == [0.02, 0.04, 0.08, 0.08]

    watch.wake()
    assert watch.sleep(20.0)
    assert not watch.sleep(20.0)
    assert watch._pause_s == 0.02
    watch.close()


def test_a_watch_that_nobody_closed_gives_its_descriptors_back(tmp_path: Path) -> None:
    def event_fds() -> int:
        every = Path("/proc/self/fd").iterdir()
        targets = [str(each.readlink()) for each in every if each.is_symlink()]
        return sum("eventfd" in target or "inotify" in target for target in targets)

    before = event_fds()
    watch = SegmentWatcher()
    watch.watch([str(tmp_path)])
    watch.sleep(0.0)  # the first one makes the second descriptor
    assert event_fds() == before + 2
    del watch
    gc.collect()
    assert event_fds() == before
