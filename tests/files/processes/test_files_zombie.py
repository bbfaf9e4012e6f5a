"""A writer that was asleep while others took its file over: it learns of it, nobody else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from signal import SIGCONT
from typing import Any

import pytest
from tests.support.file_process import Order, check_replicas, in_memory, options

from leasehold.errors import FileHeld, LeaseholdError
from leasehold.files import FileWriter, Namespace
from leasehold.files.disk import SystemDisk
from leasehold.testing.disk import KillingDisk

SOFT_S = 0.2
PATIENCE = timedelta(seconds=120)
PATH = "/logs/asleep"
A, B, C, OURS = b"a" * 500, b"b" * 500, b"c" * 500, b"N" * 700

# Where it falls asleep, what others find of it, and how much it may call acknowledged in the end.
# Each piece goes to three volumes: bytes, records, the check, then the acknowledged length.
ASLEEP = {
    "before its first replica": ("before create meta", 1, b"", 0),
    "amid its first replicas": ("after create data", 2, b"", 0),
    "between two pieces": ("after write acknowledged", 3, A, 500),
    "amid the bytes": ("after write data", 4, A, 500),
    "between bytes and records": ("after write data", 6, A, 500),
    "amid the records": ("after write record", 4, A, 500),
    "between records and check": ("after write record", 6, A + B, 500),
    "between check and acknowledgement": ("before write acknowledged", 4, A + B, 1000),
    "amid the acknowledged lengths": ("after write acknowledged", 5, A + B, 1000),
    "at the seal": ("after write seal", 1, A + B + C, 1500),
    "before the sync of close": ("before sync block", 1, A + B + C, 1500),
    "before the journal hears of close": (
        "after sync_directory block",
        3,
        A + B + C,
        1500,
    ),
}


class Zombie:
    """A writer in a process of its own that stops itself."""

    def __init__(self, url: str, point: str, nth: int) -> None:
        order = Order(
            program="zombie",
            url=url,
            path=PATH,
            point=point,
            nth=nth,
            act="SIGSTOP",
            soft_s=SOFT_S,
        )
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.file_process", "run", order.line()],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def until_asleep(self) -> None:
        seen = os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED, self._rest()

    def woken(self) -> list[dict[str, Any]]:
        """Wake it; all that it said in its life."""
        self._popen.send_signal(SIGCONT)
        return [json.loads(line) for line in self._rest().splitlines()]

    def end(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._rest()

    def _rest(self) -> str:
        said, _ = self._popen.communicate(timeout=120)
        return said


class Watcher:
    """Reads the file again and again, and remembers all that it saw."""

    def __init__(self, files: Namespace) -> None:
        self._files = files
        self._stop = threading.Event()
        self.seen: list[bytes] = [b""]
        self.trouble: list[LeaseholdError] = []
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            try:
                found = self._files.read(PATH).read()
            except LeaseholdError as error:
                self.trouble.append(error)
                return
            if found != self.seen[-1]:
                self.seen.append(found)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def ended(self) -> list[bytes]:
        self.end()
        assert not self.trouble
        return self.seen


@contextmanager
def asleep(point: str, nth: int) -> Iterator[tuple[Zombie, Namespace, Watcher]]:
    with in_memory() as root, ExitStack() as stack:
        files = stack.enter_context(
            Namespace.open(
                f"sqlite:///{root}/journal.db",
                name="heir",
                volumes=[Path(root) / f"volume{number}" for number in range(3)],
                options=options(soft_s=SOFT_S),
                run_monitor=False,
            )
        )
        zombie = Zombie(files.url, point, nth)
        stack.callback(zombie.end)
        zombie.until_asleep()
        watcher = Watcher(files)
        stack.callback(watcher.end)
        yield zombie, files, watcher


def taken_over(files: Namespace) -> FileWriter:
    """Append as soon as the soft limit allows it."""
    while True:
        try:
            return files.append(PATH)
        except FileHeld as held:
            threading.Event().wait(held.retry_after_s)


def check_lost(said: list[dict[str, Any]], *, may_have: int) -> dict[str, Any]:
    """It was told, with its own epoch; and it was told so whatever it tried afterwards."""
    lost = [each for each in said if each["event"] == "lost"]
    assert lost, said
    assert max([0, *(each["length"] for each in said if "length" in each)]) <= may_have
    first = said.index(lost[0])
    assert not [each for each in said[first:] if each["event"] == "acknowledged"], said
    created = [each["epoch"] for each in said if each["event"] == "created"]
    assert {each["epoch"] for each in lost} == set(created or [lost[0]["epoch"]])
    assert {each["key"] for each in lost} == {PATH}
    assert str(lost[0]["epoch"]) in lost[0]["message"]
    return lost[0]


@pytest.mark.spec("F8", "B5")
@pytest.mark.parametrize("where", ASLEEP)
def test_a_writer_that_wakes_up_while_another_writes_is_told_who(where: str) -> None:
    point, nth, found, may_have = ASLEEP[where]
    with asleep(point, nth) as (zombie, files, watcher):
        refused = files.refused()
        with taken_over(files) as writer:
            assert files.read(PATH).read() == found
            writer.write(OURS)
            writer.flush()
            lost = check_lost(zombie.woken(), may_have=may_have)
            assert lost["now_held_by"] == files.holder
            assert files.holder in lost["message"]
            assert lost["epoch"] < writer.epoch
            writer.write(OURS)
        seen = watcher.ended()
        assert files.refused() > refused
        assert files.read(PATH).read() == found + OURS + OURS
        assert all((found + OURS + OURS).startswith(each) for each in seen)
        check_replicas(files, PATH)


@pytest.mark.spec("F8", "B5")
@pytest.mark.parametrize("where", ASLEEP)
def test_the_late_bytes_of_a_writer_never_appear_in_a_closed_file(where: str) -> None:
    point, nth, found, may_have = ASLEEP[where]
    with asleep(point, nth) as (zombie, files, watcher):
        with taken_over(files) as writer:
            writer.write(OURS)
        files.monitor.run_once()  # what nobody needs is removed, also what kept the sleeper out
        status = files.status(PATH)
        check_lost(zombie.woken(), may_have=may_have)
        seen = watcher.ended()
        assert files.status(PATH) == status
        assert files.read(PATH).read() == found + OURS
        assert all((found + OURS).startswith(each) for each in seen)
        check_replicas(files, PATH)
        assert files.refused() > 0


class Interrupted(BaseException):
    """The end of a process, as far as its files can tell."""


@pytest.mark.spec("F7", "F8")
def test_a_writer_that_wakes_up_between_two_recoveries_changes_nothing() -> None:
    def die() -> None:
        raise Interrupted

    with asleep("after write data", 6) as (zombie, files, watcher):
        disk = KillingDisk(SystemDisk(), "before create seal", 1, die)
        with Namespace.open(
            files.url, options=options(soft_s=SOFT_S), run_monitor=False, disk=disk
        ) as first:
            with pytest.raises(Interrupted):
                first.recover(PATH, timeout=PATIENCE)
            # All bytes of its piece are there: its records are all that is missing.
            check_lost(zombie.woken(), may_have=len(A))
        assert files.recover(PATH, timeout=PATIENCE).length == len(A)
        assert all(A.startswith(each) for each in watcher.ended())
        assert files.read(PATH).read() == A
        check_replicas(files, PATH)
