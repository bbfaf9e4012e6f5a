"""A fenced file: old or new and whole, whatever is killed, and never what an old epoch wrote."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import pytest
from tests.support import run_directory
from tests.support.forked import Steps, ended, forked

from leasehold.errors import DataDamaged, FencedWrite, JobHeld, UsageError
from leasehold.jobs.fences import FencedPath

OLD, NEW = b"old\n" * 1000, b"new\n" * 2000


@dataclass(frozen=True)
class Run:
    epoch: int


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "report.csv"


def write(path: Path, epoch: int, content: bytes) -> None:
    # A disk that is busy keeps a lock for long.
    with FencedPath(path, patience=timedelta(seconds=100)).replace(epoch) as file:
        file.write(content)


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_the_new_content_is_there_at_the_end_of_the_block_and_not_before(target: Path) -> None:
    write(target, 1, OLD)
    with FencedPath(target).replace(Run(epoch=2)) as file:
        file.write(NEW)
        file.flush()
        assert target.read_bytes() == OLD
    assert target.read_bytes() == NEW
    assert FencedPath(target).highest_epoch() == 2
    assert names(target) == [".report.csv.fence", ".report.csv.lock", "report.csv"]


def test_the_same_epoch_may_write_again(target: Path) -> None:
    write(target, 3, OLD)
    write(target, 3, NEW)
    assert target.read_bytes() == NEW


@pytest.mark.spec("B5")
def test_an_old_epoch_is_refused_before_the_block_begins(target: Path) -> None:
    write(target, 7, NEW)
    entered = False
    with (
        pytest.raises(FencedWrite, match=r"epoch 6, and epoch 7 .*: stop") as told,
        FencedPath(target).replace(6),
    ):
        entered = True
    assert not entered
    assert told.value.epoch == 6
    assert str(target.with_name(".report.csv.fence")) in str(told.value)
    assert target.read_bytes() == NEW


@pytest.mark.spec("B5")
def test_a_writer_that_slept_in_its_block_is_refused_at_its_end(target: Path) -> None:
    """The zombie began before the new holder did, and wakes up after it."""
    write(target, 1, OLD)
    with pytest.raises(FencedWrite), FencedPath(target).replace(1) as zombie:  # noqa: PT012
        zombie.write(b"from the past")
        write(target, 2, NEW)
    assert target.read_bytes() == NEW
    assert len(names(target)) == 3


@pytest.mark.spec("B5")
def test_it_is_refused_even_if_the_new_holder_has_only_begun(target: Path) -> None:
    write(target, 1, OLD)
    with FencedPath(target).replace(2) as successor:
        with pytest.raises(FencedWrite):
            write(target, 1, b"from the past")
        successor.write(NEW)
        assert target.read_bytes() == OLD
    assert target.read_bytes() == NEW


def test_an_error_in_the_block_leaves_the_file_as_it_was(target: Path) -> None:
    write(target, 1, OLD)
    with pytest.raises(RuntimeError), FencedPath(target).replace(2) as file:  # noqa: PT012
        file.write(NEW)
        raise RuntimeError
    assert target.read_bytes() == OLD
    assert len(names(target)) == 3


def test_text_is_written_as_it_is(target: Path) -> None:
    with FencedPath(target).replace_text(1) as file:
        file.write("naïve\r\n\n")
    assert target.read_bytes() == "naïve\r\n\n".encode()
    with pytest.raises(RuntimeError), FencedPath(target).replace_text(2) as file:  # noqa: PT012
        file.write("half")
        raise RuntimeError
    assert target.read_bytes() == "naïve\r\n\n".encode()


def killed_at(step: int, target: Path) -> int:
    """A process that replaces the file and dies before its n-th step; how it ended."""

    def work() -> None:
        steps = Steps(step)
        places = ((os, "fsync"), (os, "open"), (Path, "replace"), (fcntl, "flock"), (os, "fchmod"))
        with steps.counting(*places):
            write(target, 2, NEW)

    return ended(forked(work))


@pytest.mark.process
def test_a_kill_at_any_step_leaves_the_old_or_the_new_file_whole(target: Path) -> None:
    contents: list[bytes] = []
    seen: list[int] = []
    for step in range(100):
        target.with_name(".report.csv.fence").unlink(missing_ok=True)
        write(target, 1, OLD)
        end = killed_at(step, target)
        contents.append(target.read_bytes())
        seen.append(FencedPath(target).highest_epoch())
        if end == 0:
            break
        assert end == -signal.SIGKILL
        # Whoever follows takes over at once, and clears up.
        write(target, 3, b"next")
        assert target.read_bytes() == b"next"
        assert len(names(target)) == 3
    assert len(contents) > 12
    assert contents == sorted(contents, key=(OLD, NEW).index)
    assert set(contents) == {OLD, NEW}
    assert [epoch for epoch, content in zip(seen, contents, strict=True) if content == NEW] == (
        [2] * contents.count(NEW)
    )
    assert seen == sorted(seen)


def test_a_draft_of_a_living_writer_is_left_alone(target: Path) -> None:
    with FencedPath(target).replace(1) as first:
        first.write(OLD)
        with FencedPath(target).replace(1) as second:
            second.write(NEW)
        assert target.read_bytes() == NEW
    assert target.read_bytes() == OLD  # the same holder: the last one to end stands


def test_a_draft_of_another_file_is_left_alone(target: Path) -> None:
    """Its writer has made it, and is just about to lock it."""
    other = target.with_name(".report.csv.bak.0123456789ab.draft")
    left = target.with_name(".report.csv.0123456789ab.draft")
    for draft in (other, left):
        draft.write_bytes(OLD)
    write(target, 1, NEW)
    assert other.exists()
    assert not left.exists()


def test_a_name_with_signs_of_patterns_is_cleared_up_too(tmp_path: Path) -> None:
    target = tmp_path / "r[1]*.(csv"
    left = tmp_path / ".r[1]*.(csv.0123456789ab.draft"
    left.write_bytes(OLD)
    write(target, 1, NEW)
    assert not left.exists()


def test_two_holders_at_once_leave_what_the_higher_epoch_wrote(target: Path) -> None:
    """Both write again and again; after the first word of the higher one the lower one fails."""
    rounds, refused = 30, threading.Event()
    begun = threading.Barrier(2)

    def lower() -> None:
        begun.wait()
        try:
            while True:
                write(target, 1, OLD)
        except FencedWrite:
            refused.set()

    thread = threading.Thread(target=lower)
    thread.start()
    begun.wait()
    seen = []
    for _ in range(rounds):
        write(target, 2, NEW)
        seen.append(target.read_bytes())
    thread.join()
    assert refused.is_set()
    assert seen == [NEW] * rounds
    assert target.read_bytes() == NEW


def test_a_second_writer_is_told_who_is_replacing_the_file(target: Path) -> None:
    write(target, 1, OLD)
    with target.with_name(".report.csv.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        impatient = FencedPath(target, patience=timedelta(seconds=0.05))
        with (
            pytest.raises(JobHeld, match=f"process {os.getpid()} on .* end it") as told,
            impatient.replace(2),
        ):
            pass
    assert told.value.epoch == 1
    write(target, 2, NEW)


def test_a_lock_on_a_file_that_was_replaced_does_not_count(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file is exchanged after it was opened; another process has locked the new one."""
    write(target, 1, OLD)
    path = target.with_name(".report.csv.lock")
    taken: list[BinaryIO] = []
    flock = fcntl.flock

    def exchanged(file: BinaryIO, how: int) -> None:
        if not taken:
            path.rename(path.with_suffix(".moved"))
            taken.append(path.open("w+b"))
            flock(taken[0], fcntl.LOCK_EX)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", exchanged)
    impatient = FencedPath(target, patience=timedelta(seconds=0.05))
    with pytest.raises(JobHeld), impatient.replace(2) as file:
        file.write(NEW)
    assert (target.read_bytes(), impatient.highest_epoch()) == (OLD, 1)  # it did not even begin
    taken[0].close()
    write(target, 2, NEW)
    assert target.read_bytes() == NEW


@pytest.mark.process
def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(target: Path) -> None:
    """Another thread forks while the file is replaced; the child lives on, and runs nothing new."""
    read_end, write_end = os.pipe()

    def lives_on() -> None:
        os.close(write_end)
        os.read(read_end, 1)

    with FencedPath(target)._locked(1):
        child = forked(lives_on)
    try:
        with FencedPath(target, patience=timedelta(seconds=0.05)).replace(2) as file:
            file.write(NEW)
        # It was alive all the time.
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(write_end)
        os.close(read_end)
        assert ended(child) == 0
    assert target.read_bytes() == NEW


@contextmanager
def with_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_the_mode_of_the_file_is_kept(target: Path, mode: int) -> None:
    write(target, 1, OLD)
    target.chmod(mode)
    with FencedPath(target).replace(2) as file:
        draft = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        assert draft & ~mode == 0  # nobody reads it earlier who may not read it later
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_new_file_has_the_mode_that_the_umask_leaves(target: Path) -> None:
    with with_umask(0o027):
        write(target, 1, OLD)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_link_is_followed_and_shares_the_fence_of_its_file(target: Path) -> None:
    write(target, 5, OLD)
    link = target.with_name("latest.csv")
    link.symlink_to(target)
    with pytest.raises(FencedWrite):
        write(link, 4, b"from the past")
    write(link, 6, NEW)
    assert link.is_symlink()
    assert target.read_bytes() == NEW


def test_a_hard_link_is_cut(target: Path) -> None:
    write(target, 1, OLD)
    other = target.with_name("other.csv")
    other.hardlink_to(target)
    write(target, 2, NEW)
    assert (target.read_bytes(), other.read_bytes()) == (NEW, OLD)


@pytest.mark.parametrize("epoch", [0, -1, True, "7", None, 1.5])
def test_what_is_no_epoch_is_refused(target: Path, epoch: object) -> None:
    with pytest.raises(UsageError, match="LEASEHOLD_EPOCH"), FencedPath(target).replace(epoch):  # type: ignore[arg-type]
        pass
    assert not target.exists()


def test_a_directory_that_can_not_be_written_to_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "report.csv"
    with pytest.raises(FileNotFoundError), FencedPath(missing).replace(1):
        pass


@pytest.mark.process
def test_a_read_only_directory_is_refused_before_the_block() -> None:
    """Root may write anywhere, so another user tries it where the tests run as root."""
    place = Path(
        tempfile.mkdtemp(dir=run_directory.begun().parent)
    )  # all may look into its parents
    place.chmod(0o755)
    report = place / "report.csv"

    def work() -> None:
        if not os.getuid():
            os.setresuid(65534, 65534, 65534)
        with pytest.raises(PermissionError), FencedPath(report).replace(2):
            pytest.fail("the block was entered")

    try:
        write(report, 1, OLD)
        report.with_name(".report.csv.lock").chmod(0o666)
        place.chmod(0o555)
        assert ended(forked(work)) == 0
        assert report.read_bytes() == OLD
    finally:
        place.chmod(0o700)
        shutil.rmtree(place)


def make(kind: str, path: Path) -> None:
    if kind == "a directory":
        path.mkdir()
    elif kind == "a named pipe":
        os.mkfifo(path)
    else:
        # The address of a socket is short: it is bound by a relative name.
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)


KINDS = ["a directory", "a named pipe", "a socket"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_and_left_alone(target: Path, kind: str) -> None:
    make(kind, target)
    before = target.stat()
    link = target.with_name("link.csv")
    link.symlink_to(target)
    for path in (target, link):
        with pytest.raises(UsageError, match=f"{target} is {kind}"), FencedPath(path).replace(1):
            pytest.fail("the block was entered")
    assert os.path.samestat(target.stat(), before)
    assert names(target) == ["link.csv", "report.csv"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_refused_too_if_it_came_while_the_block_ran(target: Path, kind: str) -> None:
    with (
        pytest.raises(UsageError, match=f"is {kind}"),
        FencedPath(target).replace(1),
    ):
        make(kind, target)
    assert not stat.S_ISREG(target.stat().st_mode)
    assert len(names(target)) == 3


def test_a_block_that_closes_the_file_replaces_nothing(target: Path) -> None:
    write(target, 1, OLD)
    with pytest.raises(UsageError, match="leave it open"), FencedPath(target).replace(2) as file:
        file.close()
    assert target.read_bytes() == OLD


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"token": "x"}', b"\xff"])
def test_a_damaged_fence_lets_nobody_through(target: Path, damage: bytes) -> None:
    write(target, 1, OLD)
    target.with_name(".report.csv.fence").write_bytes(damage)
    with pytest.raises(DataDamaged, match="backup"):
        write(target, 2, NEW)
    assert target.read_bytes() == OLD
