"""kill -9 of a real process at every effect on a disk and around every commit, then recovery."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from tests.support.file_process import Order, check_replicas, in_memory, options, pattern

from leasehold.errors import UnknownFile
from leasehold.files import FileState, Namespace

# The last come first: one killed amid a check of a volume leaves a file that others find there.
# Each point is one step of a program; every third one is in make test, the others are in the soak.
SHARES = [0, *(pytest.param(each, marks=pytest.mark.soak) for each in (1, 2))]
PATIENCE = timedelta(seconds=120)
NEXT = b"the next writer's bytes"
# A writer that died here leaves replicas that differ: each is one more thing to recover from.
DIED_AT = (
    ("after write record", 2),  # the first record is on two of three volumes
    ("after write acknowledged", 1),
    ("before sync block", 2),  # a full block has a seal, and the journal does not know
    ("before commit drop volumes", 1),
)
RECOVERED = DIED_AT[1]


class Server:
    """Carries out orders, each in a process of its own."""

    def __init__(self, root: Path) -> None:
        self.url = f"sqlite:///{root}/journal.db"
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.file_process", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def run(
        self, program: str, path: str, point: str = "never", nth: int = 1
    ) -> list[dict[str, Any]]:
        """All that the process said; the last is how it ended."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        order = Order(program=program, url=self.url, path=path, point=point, nth=nth)
        self._popen.stdin.write(order.line() + "\n")
        self._popen.stdin.flush()
        said: list[dict[str, Any]] = []
        for line in self._popen.stdout:
            said.append(json.loads(line))
            if said[-1]["event"] == "failed":
                pytest.fail(said[-1]["trace"])
            if said[-1]["event"] == "ended":
                return said
        return pytest.fail("the server ended")

    def killed(self, program: str, path: str, point: tuple[str, int]) -> list[dict[str, Any]]:
        said = self.run(program, path, *point)
        assert said[-1]["signal"] == SIGKILL, f"{point} was never reached"
        return said

    def points(self, program: str, path: str) -> list[tuple[str, int]]:
        """Every point that a run passes, each with how often it was passed before."""
        said = self.run(program, path)
        assert said[-1] == {"event": "ended", "signal": 0, "code": 0}
        seen: Counter[str] = Counter()
        found: list[tuple[str, int]] = []
        for point in said[-2]["points"]:
            seen[point] += 1
            found.append((point, seen[point]))
        return found

    def end(self) -> None:
        try:
            self._popen.communicate(timeout=120)
        finally:
            self._popen.kill()


@contextmanager
def scene() -> Iterator[tuple[Server, Namespace]]:
    with in_memory() as root:
        server = Server(Path(root))
        volumes = [Path(root) / f"volume{number}" for number in range(3)]
        try:
            with Namespace.open(
                server.url, volumes=volumes, options=options(), run_monitor=False
            ) as files:
                yield server, files
        finally:
            server.end()


def acknowledged(said: list[dict[str, Any]]) -> int:
    return max((each["length"] for each in said if "length" in each), default=0)


def content(files: Namespace, path: str) -> bytes:
    return files.read(path).read()


def check_recovered(files: Namespace, path: str, least: int) -> None:
    """Recover, and look at everything that was promised."""
    status = files.recover(path, timeout=PATIENCE)
    assert status.state is FileState.CLOSED
    assert status.length >= least
    found = content(files, path)
    assert len(found) == status.length
    assert found == pattern(path)[: status.length]
    check_replicas(files, path)

    assert files.recover(path, timeout=PATIENCE) == status
    assert content(files, path) == found

    with files.append(path) as writer:
        assert writer.epoch > status.epoch
        writer.write(NEXT)
    assert content(files, path) == found + NEXT
    check_replicas(files, path)


@pytest.mark.spec("F8")
@pytest.mark.parametrize("share", SHARES)
def test_nothing_acknowledged_is_lost_wherever_a_writer_is_killed(share: int) -> None:
    with scene() as (server, files):
        points = server.points("write", "/whole")
        check_recovered(files, "/whole", 10_692)
        assert {"after commit create", "before commit next block", "before commit close"} <= {
            point for point, _ in points
        }
        for number, point in enumerate(reversed(points[share :: len(SHARES)])):
            path = f"/killed/{number}"
            said = server.killed("write", path, point)
            if points.index(point) <= points.index(("before commit create", 1)):
                with pytest.raises(UnknownFile):
                    files.status(path)
                continue
            try:
                check_recovered(files, path, acknowledged(said))
            except AssertionError as error:
                error.add_note(f"killed at {point}")
                raise


@pytest.mark.spec("F7", "F8")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("died_at", DIED_AT, ids=lambda point: "-".join(map(str, point)))
def test_a_recovery_that_is_killed_anywhere_is_done_again_with_the_same_end(
    died_at: tuple[str, int], share: int
) -> None:
    with scene() as (server, files):
        before = acknowledged(server.killed("write", "/whole", died_at))
        points = server.points("recover", "/whole")
        length = files.status("/whole").length
        assert length >= before
        # Each way to die begins with another step, so that together they see nearly all of them.
        begin = (share + DIED_AT.index(died_at)) % len(SHARES)
        for number, point in enumerate(points[begin :: len(SHARES)]):
            path = f"/killed/{number}"
            server.killed("write", path, died_at)
            server.killed("recover", path, point)
            try:
                check_recovered(files, path, before)
                assert len(content(files, path)) == length + len(NEXT)
            except AssertionError as error:
                error.add_note(f"killed at {point}")
                raise


@pytest.mark.spec("F8")
@pytest.mark.parametrize("share", SHARES)
def test_what_was_recovered_stays_wherever_the_next_writer_is_killed(share: int) -> None:
    with scene() as (server, files):
        server.killed("write", "/whole", RECOVERED)
        points = server.points("append", "/whole") if recovered(files, "/whole") else []
        check_recovered(files, "/whole", 1000 + 600 + 8192 + 200)
        for number, point in enumerate(reversed(points[share :: len(SHARES)])):
            path = f"/killed/{number}"
            server.killed("write", path, RECOVERED)
            length = recovered(files, path)
            said = server.killed("append", path, point)
            try:
                check_recovered(files, path, max(length, acknowledged(said)))
            except AssertionError as error:
                error.add_note(f"killed at {point}")
                raise


def recovered(files: Namespace, path: str) -> int:
    return files.recover(path, timeout=PATIENCE).length
