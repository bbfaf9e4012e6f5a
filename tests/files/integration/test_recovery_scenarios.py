"""What HDFS tests of recovery, played here: where a file ends, whoever dies and when."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.namespaces import (
    AT_ONCE,
    ATTEMPT_S,
    HARD_S,
    SOFT_S,
    SOON,
    World,
    blocks,
    content,
    steps,
)

from leasehold.errors import FencedWrite, LeaseLost, RecoveryInProgress, TailUncertain
from leasehold.files import (
    BlockState,
    FileState,
    FileStatus,
    FileWriter,
    Namespace,
    RecoveryProgress,
)
from leasehold.files.block_meta import PIECE_BYTES, RECORD_BYTES
from leasehold.files.model import RecoveryReason, SealedBlock, WriteTicket
from leasehold.files.recovery import run_recovery
from leasehold.testing.disk import KillingDisk


class Died(BaseException):
    """The process is gone: nothing of ours runs after this."""


def _flushed(files: Namespace, path: str, *parts: bytes) -> FileWriter:
    writer = files.create(path)
    for part in parts:
        writer.write(part)
        writer.flush()
    return writer


def _metas(files: Namespace, path: str) -> list[Path]:
    """The meta files of the last block, one for each of its volumes."""
    last = blocks(files, path)[-1]
    return [
        Path(volume.meta_path(last.id, last.generation))
        for volume in files.volumes
        if volume.id in last.volumes
    ]


def _datas(files: Namespace, path: str) -> list[Path]:
    last = blocks(files, path)[-1]
    return [
        Path(volume.data_path(last.id)) for volume in files.volumes if volume.id in last.volumes
    ]


def _dies_at(step: str) -> Callable[[RecoveryProgress], None]:
    def reported(progress: RecoveryProgress) -> None:
        if progress.step.startswith(step):
            raise Died(step)

    return reported


def _dies_before_complete(monkeypatch: pytest.MonkeyPatch, files: Namespace) -> None:
    def never(ticket: WriteTicket, sealed: SealedBlock | None) -> FileStatus:
        raise Died("before the journal was told")

    monkeypatch.setattr(files._context.journal, "complete", never)


# ---------------------------------------------------------------- the end of a file


@pytest.mark.scenario("S19")
def test_a_block_was_allocated_and_nothing_written(both: World) -> None:
    dead, others = both.open("dead"), both.open("other")
    dead.create("/a")
    both.pass_s(HARD_S + 1)
    assert others.monitor.run_once().recovered == 1
    assert (others.is_closed("/a"), blocks(others, "/a")) == (True, ())
    assert steps(others, "/a") == ["create", "recovery begun", "tail dropped"]
    others.monitor.run_once()  # and what was made for it is removed
    assert [path for root in both.roots for path in root.glob("blocks/*/*")] == []


@pytest.mark.scenario("S21")
@pytest.mark.spec("F3", "F7")
def test_after_the_hard_limit_what_was_flushed_is_there_on_every_replica(both: World) -> None:
    dead, others = both.open("dead"), both.open("other")
    _flushed(dead, "/a", b"something")
    both.pass_s(HARD_S + 1)
    assert others.monitor.run_once().recovered == 1
    (block,) = blocks(others, "/a")
    assert (block.length, len(block.volumes)) == (9, 3)
    assert [path.read_bytes() for path in _datas(others, "/a")] == [b"something"] * 3
    assert others.verify("/a") == []


@pytest.mark.scenario("S29")
@pytest.mark.spec("F7")
def test_all_replicas_get_the_same_length_and_a_new_generation(both: World) -> None:
    dead, others = both.open("dead"), both.open("other")
    with dead.create("/a") as writer:
        writer.write(b"closed before ")
    appended = dead.append("/a")
    appended.write(b"x" * 2500)
    appended.sync()
    both.pass_s(SOFT_S + 1)
    status = others.recover("/a", timeout=SOON)
    before, last = blocks(others, "/a")
    assert (before.generation, last.generation) == (writer.epoch, status.epoch)
    assert appended.epoch < status.epoch
    assert (last.length, last.state) == (2500, BlockState.COMPLETE)
    assert len({path.read_bytes() for path in _metas(others, "/a")}) == 1
    assert [path.stat().st_size for path in _datas(others, "/a")] == [2500] * 3


@pytest.mark.scenario("S30")
@pytest.mark.parametrize("cut", [1, 3])
def test_one_checksum_is_cut_from_the_meta_file(one: World, cut: int) -> None:
    files, others = one.open(), one.open("other")
    _flushed(files, "/a", b"a" * 700, b"b" * 300)
    for path in _metas(files, "/a")[:cut]:
        os.truncate(path, path.stat().st_size - RECORD_BYTES)
    status = others.recover("/a", timeout=AT_ONCE)
    # One that still has it is enough, and the others get it again; if none has, the file ends one
    # piece earlier.
    assert status.length == (1000 if cut == 1 else 700)
    assert content(others, "/a") == (b"a" * 700 + b"b" * 300)[: status.length]
    assert len(blocks(others, "/a")[0].volumes) == 3


@pytest.mark.scenario("S31")
def test_a_replica_without_its_meta_file_does_not_stop_the_recovery(one: World) -> None:
    # HDFS-12070: one bad replica failed every attempt, and the data was at risk.
    files, others = one.open(), one.open("other")
    _flushed(files, "/a", b"whole")
    _metas(files, "/a")[1].unlink()
    assert others.recover("/a", timeout=AT_ONCE).length == 5
    (block,) = blocks(others, "/a")
    assert len(block.volumes) == 2
    (fault,) = others.verify("/a")
    assert fault.what == f"block {block.id:#x} is on 2 of 3 volumes"


@pytest.mark.scenario("S31")
def test_a_volume_that_is_away_does_not_stop_the_recovery_and_its_copy_goes_later(
    one: World,
) -> None:
    files, others = one.open(), one.open("other")
    _flushed(files, "/a", b"whole")
    one.roots[0].rename(one.roots[0].with_suffix(".away"))
    assert others.recover("/a", timeout=AT_ONCE).length == 5
    assert others.monitor.run_once().removed == 0
    one.roots[0].with_suffix(".away").rename(one.roots[0])
    assert others.monitor.run_once().removed == 1
    assert list(one.roots[0].glob("blocks/*/*")) == []
    assert content(others, "/a") == b"whole"


@pytest.mark.scenario("S33")
@pytest.mark.parametrize("asked", [True, False])
def test_a_block_that_was_never_on_any_volume_is_dropped(both: World, asked: bool) -> None:
    # HDFS-14498: such a file was tried again for ever.
    dead, others = both.open("dead"), both.open("other")
    with dead.create("/a") as writer:
        writer.write(b"before")
    journal, volumes = dead._context.journal, tuple(volume.id for volume in dead.volumes)
    journal.append("/a", dead._holder, volumes=volumes, request="died")  # and died right then
    if asked:
        assert others.recover("/a", timeout=AT_ONCE).length == 6
    else:
        both.pass_s(HARD_S + 1)
        assert others.monitor.run_once().recovered == 1
    assert len(blocks(others, "/a")) == 1
    with others.append("/a") as writer:
        writer.write(b" and after")
    assert content(others, "/a") == b"before and after"


@pytest.mark.scenario("S34")
def test_the_monitor_does_not_drop_a_block_while_a_volume_is_silent(one: World) -> None:
    dead, others = one.open("dead"), one.open("other")
    dead.create("/a")
    one.roots[2].rename(one.roots[2].with_suffix(".away"))
    one.pass_s(HARD_S + 1)
    assert others.monitor.run_once().failed == 1  # that one may have the bytes
    status = others.status("/a")
    assert status.state is FileState.RECOVERING
    assert "Nothing was dropped: bring back the volumes named" in status.trouble
    one.roots[2].with_suffix(".away").rename(one.roots[2])
    one.pass_s(status.next_attempt_s + 1)
    assert others.monitor.run_once().recovered == 1
    assert blocks(others, "/a") == ()


@pytest.mark.scenario("S36")
def test_the_block_was_sealed_and_the_journal_not_told(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, others = both.open("dead"), both.open("other")
    writer = _flushed(dead, "/a", b"1")
    _dies_before_complete(monkeypatch, dead)
    with pytest.raises(Died):
        writer.close()
    assert others.status("/a").state is FileState.OPEN
    assert content(others, "/a") == b"1"
    both.pass_s(HARD_S + 1)
    assert others.monitor.run_once().recovered == 1
    with others.append("/a") as heir:
        heir.write(b"2")
    assert content(others, "/a") == b"12"
    assert others.verify("/a") == []


@pytest.mark.scenario("S40")
def test_after_the_hard_limit_the_size_is_right_and_the_old_writer_is_out(both: World) -> None:
    dead, others = both.open("dead"), both.open("other")
    writer = _flushed(dead, "/a", b"x" * 1234, b"y" * 4321)
    both.pass_s(HARD_S + 1)
    assert others.monitor.run_once().recovered == 1
    assert others.status("/a").length == 5555
    writer.write(b"late")
    with pytest.raises(FencedWrite, match=r"/a was recovered under epoch \d+ by monitor"):
        writer.flush()
    with pytest.raises(LeaseLost):
        writer.close()
    assert content(others, "/a") == b"x" * 1234 + b"y" * 4321


# ---------------------------------------------------------------- deaths on the way


@pytest.mark.scenario("S35")
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("after rename fence", 1),
        ("before unlink fenced", 2),
        ("after write frozen", 3),
        ("before rename seal", 1),
        ("after rename seal", 2),
        ("after sync_directory seal", 3),
    ],
)
def test_an_attempt_that_was_given_up_half_way_changes_nothing(
    one: World, point: str, nth: int
) -> None:
    files = one.open()

    def dies() -> None:
        raise Died(point)

    killed = one.open("killed", disk=KillingDisk(one.disk, point, nth, dies))
    others = one.open("other")
    writer = _flushed(files, "/a", b"acknowledged")
    with pytest.raises(Died):
        killed.recover("/a", timeout=AT_ONCE)
    with pytest.raises(FencedWrite):
        writer.close()
    with pytest.raises(RecoveryInProgress, match=r"attempt 1: ask again in 90\.0 s$"):
        others.recover("/a", timeout=AT_ONCE)
    one.pass_s(ATTEMPT_S)
    assert others.recover("/a", timeout=AT_ONCE).length == 12
    assert content(others, "/a") == b"acknowledged"
    assert others.verify("/a") == []


@pytest.mark.scenario("S42")
@pytest.mark.parametrize("step", ["asking", "agreeing", "sealing"])
def test_a_restart_during_a_recovery(both: World, step: str) -> None:
    dead, first = both.open("dead"), both.open("first")
    writer = _flushed(dead, "/a", b"x" * 999)
    both.pass_s(SOFT_S + 1)
    with pytest.raises(Died):
        first.recover("/a", timeout=AT_ONCE, progress=_dies_at(step))
    again = both.open("again", volumes=())
    status = again.status("/a")
    assert (status.state, status.holder) == (FileState.RECOVERING, first.holder)
    writer.write(b"late")
    expected = b"x" * 999
    if step == "asking":  # nobody has been at the volumes: what is acknowledged now is kept too
        assert writer.sync() == 1003
        expected += b"late"
    else:
        with pytest.raises(FencedWrite):
            writer.sync()
    with pytest.raises(FencedWrite):
        writer.close()
    assert again.monitor.run_once().recovered == 0  # it still has time
    both.pass_s(ATTEMPT_S + 1)
    assert again.monitor.run_once().recovered == 1
    assert content(again, "/a") == expected
    assert again.verify("/a") == []


@pytest.mark.scenario("S43")
@pytest.mark.parametrize("length", [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_a_restart_during_a_recovery_next_to_the_end_of_a_piece(one: World, length: int) -> None:
    dead, first = one.open("dead"), one.open("first")
    data = (b"%06d|" % 7 * (length // 7 + 1))[:length]
    _flushed(dead, "/a", data)
    with pytest.raises(Died):
        first.recover("/a", timeout=AT_ONCE, progress=_dies_at("sealing"))
    one.pass_s(ATTEMPT_S + 1)
    again = one.open("again")
    assert again.recover("/a", timeout=AT_ONCE).length == length
    assert content(again, "/a") == data


@pytest.mark.scenario("S44")
def test_a_restart_during_a_recovery_of_a_file_that_is_renamed(both: World) -> None:
    dead, first = both.open("dead"), both.open("first")
    writer = _flushed(dead, "/d/a", b"x" * 999)
    with pytest.raises(Died):
        first.recover("/d/a", timeout=AT_ONCE, progress=_dies_at("agreeing"))
    again = both.open("again")
    assert again.rename("/d", "/moved") == 1
    both.pass_s(ATTEMPT_S + 1)
    assert again.monitor.run_once().recovered == 1
    assert content(again, "/moved/a") == b"x" * 999
    with pytest.raises(LeaseLost):
        writer.close()


def test_after_a_recoverer_died_an_append_need_not_wait_for_the_monitor(both: World) -> None:
    dead, first, heir = both.open("dead"), both.open("first"), both.open("heir")
    _flushed(dead, "/a", b"one")
    both.pass_s(SOFT_S + 1)
    with pytest.raises(Died):
        first.recover("/a", timeout=AT_ONCE, progress=_dies_at("agreeing"))
    with pytest.raises(
        RecoveryInProgress, match=r"is being recovered by first.*ask again in 90\.0 s"
    ):
        heir.append("/a")
    both.pass_s(ATTEMPT_S + 1)
    with heir.append("/a") as writer:
        writer.write(b" two")
    assert content(heir, "/a") == b"one two"


@pytest.mark.scenario("S72")
def test_the_first_commit_is_lost_and_the_attempt_after_its_time_succeeds(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, first, second = both.open(), both.open("first"), both.open("second")
    _flushed(files, "/a", b"acknowledged")

    def lost(*_: object, **__: object) -> FileStatus:
        raise Died("before the commit")

    monkeypatch.setattr(first._context.journal, "commit_recovery", lost)
    with pytest.raises(Died):
        first.recover("/a", timeout=AT_ONCE)
    both.pass_s(ATTEMPT_S)
    assert second.recover("/a", timeout=AT_ONCE).length == 12
    assert second.verify("/a") == []


@pytest.mark.scenario("S73")
def test_a_slow_recovery_is_not_overtaken_while_it_has_time(both: World) -> None:
    # HDFS-11576: a recovery slower than a heartbeat was begun anew for ever.
    dead, slow, others = both.open("dead"), both.open("slow"), both.open("other")
    _flushed(dead, "/a", b"slowly")
    both.pass_s(HARD_S + 1)
    looked: list[int] = []

    def dawdle(progress: RecoveryProgress) -> None:
        if progress.step != "closed":
            both.pass_s(ATTEMPT_S / 4)
            looked.append(others.monitor.run_once().recovered)
            with pytest.raises(RecoveryInProgress):
                others.recover("/a", timeout=AT_ONCE)

    assert slow.recover("/a", timeout=AT_ONCE, progress=dawdle).length == 6
    assert looked == [0, 0, 0]
    assert steps(others, "/a").count("recovery begun") == 1


@pytest.mark.scenario("S84")
def test_a_late_commit_of_an_overtaken_recovery_is_refused(both: World) -> None:
    dead, slow, others = both.open("dead"), both.open("slow"), both.open("other")
    _flushed(dead, "/a", b"data ")
    context = slow._context
    begun = context.journal.begin_recovery("/a", slow._holder, reason=RecoveryReason.ASKED)
    assert begun is not None
    refused_before = others.refused()

    def overtake(progress: RecoveryProgress) -> None:
        if progress.step.startswith("sealing"):
            both.pass_s(ATTEMPT_S)
            with others.append("/a") as heir:
                heir.write(b"goes on")

    with pytest.raises((FencedWrite, RecoveryInProgress)):
        run_recovery(begun, context, progress=overtake)
    assert content(others, "/a") == b"data goes on"
    assert others.verify("/a") == []
    with pytest.raises(FencedWrite, match=r"was recovered under epoch \d+, then written by other"):
        context.journal.commit_recovery(begun, None)
    assert others.refused() > refused_before
    assert content(others, "/a") == b"data goes on"


@pytest.mark.scenario("S84")
def test_one_that_was_overtaken_before_its_commit_finds_the_file_closed(both: World) -> None:
    dead, slow, others = both.open("dead"), both.open("slow"), both.open("other")
    _flushed(dead, "/a", b"data")

    def overtake(progress: RecoveryProgress) -> None:
        if progress.step.startswith("agreeing") and not others.is_closed("/a"):
            both.pass_s(ATTEMPT_S)
            others.recover("/a", timeout=AT_ONCE)

    status = slow.recover("/a", timeout=10 * SOON, progress=overtake)
    assert (status.state, status.length) == (FileState.CLOSED, 4)
    assert others.verify("/a") == []


@pytest.mark.scenario("S86")
def test_what_is_removed_is_the_old_replica_and_never_the_good_one(one: World) -> None:
    dead, others = one.open("dead"), one.open("other")
    writer = _flushed(dead, "/a", b"flushed ")
    one.roots[0].rename(one.roots[0].with_suffix(".away"))
    writer.write(b"and synced ")
    writer.sync()  # without the volume that is away
    assert len(blocks(others, "/a")[0].volumes) == 2
    one.roots[0].with_suffix(".away").rename(one.roots[0])
    writer.write(b"and flushed")
    writer.flush()
    one.pass_s(HARD_S + 1)
    again = one.open("again", volumes=())
    assert again.monitor.run_once().recovered == 1
    again.monitor.run_once()
    assert content(again, "/a") == b"flushed and synced and flushed"
    assert list(one.roots[0].glob("blocks/*/*")) == []
    for root in one.roots[1:]:
        assert sorted(path.suffix for path in root.glob("blocks/*/*")) == [".data", ".meta"]
    assert {fault.volume for fault in again.verify("/a")} == {"-"}


def test_a_file_whose_volumes_are_all_damaged_is_not_closed_short(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"a" * 1000)
    writer.sync()
    writer.write(b"b")  # its record says that a thousand bytes are durable
    writer.flush()
    for path in _datas(files, "/a"):
        os.truncate(path, 500)
    with pytest.raises(TailUncertain, match=r"damaged on .*Nothing was dropped"):
        others.recover("/a", timeout=AT_ONCE)
    assert others.status("/a").state is FileState.RECOVERING
