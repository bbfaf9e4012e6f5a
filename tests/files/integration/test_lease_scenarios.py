"""What HDFS tests of leases, played here: who may write, who is refused, who takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.support.namespaces import AT_ONCE, SOFT_S, SOON, World, blocks, content, renew
from tests.support.postgres import execute

from leasehold.errors import (
    FencedWrite,
    FileExists,
    FileHeld,
    LeaseholdError,
    LeaseLost,
    UnknownFile,
    VolumeUnusable,
)
from leasehold.files import FileState, FileStatus, FileWriter, Namespace
from leasehold.files.model import SealedBlock, WriteTicket


def _flushed(files: Namespace, path: str, data: bytes) -> FileWriter:
    writer = files.create(path)
    writer.write(data)
    writer.flush()
    return writer


def _before(monkeypatch: pytest.MonkeyPatch, files: Namespace, act: Callable[[], object]) -> None:
    """Let something happen just before the writer tells the journal that the file is complete."""
    journal = files._context.journal
    complete = journal.complete

    def late(ticket: WriteTicket, sealed: SealedBlock | None) -> FileStatus:
        act()
        return complete(ticket, sealed)

    monkeypatch.setattr(journal, "complete", late)


@pytest.mark.scenario("S17")
def test_slow_writers_while_a_volume_is_away_leave_prefixes_without_gaps(one: World) -> None:
    files, others = one.open("slow"), one.open("heir")
    writers = [files.create(f"/slow/{number}", block_bytes=4096) for number in range(10)]
    line = b"".join(b"%07d\n" % number for number in range(1500))
    acknowledged = [0] * len(writers)
    for turn in range(12):
        if turn == 4:
            one.roots[1].rename(one.roots[1].with_suffix(".away"))
        if turn == 9:
            one.roots[1].with_suffix(".away").rename(one.roots[1])
        for number, writer in enumerate(writers):
            writer.write(line[writer.length : writer.length + 500 + 97 * number])
            if (turn + number) % 2:
                acknowledged[number] = writer.flush()
    one.pass_s(SOFT_S + 1)
    for number, least in enumerate(acknowledged):
        with pytest.raises(FileExists):
            others.create(f"/slow/{number}")
        found = content(others, f"/slow/{number}")
        assert len(found) >= least > 4096
        assert found == line[: len(found)]


@pytest.mark.scenario("S18")
def test_the_client_dies_and_the_file_can_be_read(one: World) -> None:
    _flushed(one.open("dead"), "/a", b"all that was flushed")
    one.pass_s(5 * SOFT_S)
    reader = one.open("reader").read("/a")
    assert (reader.read(), reader.status.state) == (b"all that was flushed", FileState.OPEN)


@pytest.mark.scenario("S20")
def test_open_files_survive_restarts_of_the_journal_renamed_ones_too(both: World) -> None:
    files = both.open()
    first, second = _flushed(files, "/a", b"one"), _flushed(files, "/dir/b", b"two")
    files.rename("/dir", "/moved")
    for _ in range(2):
        if both.url.startswith("postgres"):
            execute(
                both.url,
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = "
                "current_database() and pid <> pg_backend_pid() and query not like '%test_clock%'",
            )
        again = both.open("again", volumes=())
        found = {each.path: each.holder for each in again.list_open()}
        assert found == {"/a": files.holder, "/moved/b": files.holder}
        again.close()
    first.write(b"!")
    second.write(b"?")
    first.close()
    second.close()
    assert (content(files, "/a"), content(files, "/moved/b")) == (b"one!", b"two?")


@pytest.mark.scenario("S22")
def test_closing_the_client_releases_what_it_has_closed(one: World) -> None:
    files, others = one.open(), one.open("other")
    _flushed(files, "/a", b"x").close()
    files.close()
    assert others.holders() == []
    with others.append("/a") as writer:
        writer.write(b"y")
    assert content(others, "/a") == b"xy"


@pytest.mark.scenario("S23")
def test_two_files_are_written_in_turns(one: World) -> None:
    files = one.open()
    with files.create("/a", block_bytes=4096) as first, files.create("/b") as second:
        for number in range(200):
            first.write(b"a%04d|" % number * 5)
            second.write(b"b%04d|" % number * 5)
            if number % 20 == 0:
                first.flush()
                second.sync()
    for path, letter in (("/a", b"a"), ("/b", b"b")):
        expected = b"".join(letter + b"%04d|" % number for number in range(200) for _ in range(5))
        assert content(files, path) == expected
        assert files.verify(path) == []


@pytest.mark.scenario("S32")
def test_an_empty_file_is_abandoned_then_recovered_then_appended_to(one: World) -> None:
    dead, others = one.open("dead"), one.open("other")
    dead.create("/a")
    with pytest.raises(FileHeld, match=r"^/a is being written by dead"):
        others.append("/a")
    assert others.recover("/a", timeout=AT_ONCE).length == 0
    with others.append("/a") as writer:
        writer.write(b"now")
    assert content(others, "/a") == b"now"


@pytest.mark.scenario("S37")
def test_recovery_on_request_leaves_the_other_files_of_the_holder_alone(one: World) -> None:
    # HDFS-1204: a take-over of one file killed all files of its holder.
    files, others = one.open(), one.open("other")
    first, second, third = (_flushed(files, path, b"123") for path in ("/a", "/b", "/c"))
    assert others.recover("/a", timeout=SOON).length == 3  # asked by another, long before any limit
    assert files.recover("/b", timeout=SOON).length == 3  # and by the same client
    for lost in (first, second):
        lost.write(b"4")
        with pytest.raises(LeaseLost):
            lost.flush()
    third.write(b"4")
    third.close()
    assert content(others, "/c") == b"1234"


@pytest.mark.scenario("S37")
def test_a_take_over_after_the_soft_limit_takes_one_file_only(one: World) -> None:
    files, others = one.open(), one.open("other")
    first, second = _flushed(files, "/a", b"123"), _flushed(files, "/b", b"123")
    one.pass_s(SOFT_S + 1)
    with others.append("/a") as heir:
        heir.write(b"-heir")
    renew(files)  # it was only slow
    second.write(b"4")
    assert second.flush() == 4
    first.write(b"4")
    with pytest.raises(FencedWrite, match=r"was recovered under epoch \d+, then written by other"):
        first.flush()
    second.close()
    assert (content(files, "/a"), content(files, "/b")) == (b"123-heir", b"1234")


@pytest.mark.scenario("S38")
def test_a_close_during_recovery_is_refused_and_nothing_is_missing(one: World) -> None:
    # HDFS-10240: a close that raced with a recovery left a file without its block.
    files, others = one.open(), one.open("other")
    writer = _flushed(files, "/a", b"123")
    refusals: list[str] = []

    def close_it(step: str) -> None:
        if step == "agreeing on the length":
            with pytest.raises(FencedWrite) as caught:
                writer.close()
            refusals.append(str(caught.value))

    status = others.recover("/a", timeout=SOON, progress=lambda reported: close_it(reported.step))
    (said,) = refusals
    assert said == (
        f"the step under epoch {writer.epoch} was refused: /a is being recovered by "
        f"{others.holder} under epoch {status.epoch}; stop writing, and open the file anew if you "
        "still need it"
    )
    assert content(others, "/a") == b"123"
    assert others.verify("/a") == []


@pytest.mark.scenario("S39")
def test_a_client_with_other_files_open_takes_one_over(one: World) -> None:
    dead, others = one.open("dead"), one.open("other")
    _flushed(dead, "/a", b"left ")
    own = _flushed(others, "/own", b"mine")
    one.pass_s(SOFT_S + 1)
    with others.append("/a") as heir:
        heir.write(b"and found")
        own.write(b"!")
        own.flush()
    own.close()
    assert (content(others, "/a"), content(others, "/own")) == (b"left and found", b"mine!")


@pytest.mark.scenario("S41")
def test_create_is_refused_until_the_soft_limit_and_then_finds_the_file(one: World) -> None:
    dead, others = one.open("dead"), one.open("other")
    _flushed(dead, "/a", b"x" * 777)
    for _ in range(4):
        with pytest.raises(FileHeld) as caught:
            others.create("/a")
        assert caught.value.retry_after_s > 0
        one.pass_s(caught.value.retry_after_s / 2)
    one.pass_s(SOFT_S)
    with pytest.raises(FileExists):
        others.create("/a")
    assert others.status("/a").length == 777
    with others.create("/a", overwrite=True) as writer:
        writer.write(b"new")
    assert content(others, "/a") == b"new"


@pytest.mark.scenario("S45")
def test_a_reader_sees_what_was_flushed_while_another_takes_over_and_appends(one: World) -> None:
    dead, others, third = one.open("dead"), one.open("other"), one.open("reader")
    _flushed(dead, "/a", b"half a block")
    before = third.read("/a")
    unread = third.read("/a")
    assert before.read_at(0, 4) == b"half"
    one.pass_s(SOFT_S + 1)
    heir = others.append("/a")
    # Opened before the take-over, and it goes on after it: the names on the volumes have changed.
    assert before.read() == b"half a block"
    assert unread.read() == b"half a block"
    heir.write(b" and more")
    heir.flush()
    assert before.refresh() == 21
    assert before.read() == b" and more"
    heir.close()
    assert content(third, "/a") == b"half a block and more"


@pytest.mark.scenario("S46")
def test_recover_and_is_closed_of_a_closed_file_of_none_and_of_a_directory(one: World) -> None:
    files = one.open()
    _flushed(files, "/d/a", b"x").close()
    before = files.status("/d/a")
    assert files.is_closed("/d/a")
    assert files.recover("/d/a", timeout=AT_ONCE) == before  # nothing was done to it
    for path in ("/d/none", "/d"):
        with pytest.raises(UnknownFile, match=rf"^there is no file {path}: look for the right"):
            files.is_closed(path)
        with pytest.raises(UnknownFile, match=rf"^there is no file {path}"):
            files.recover(path, timeout=SOON)


@pytest.mark.scenario("S47")
def test_a_late_close_after_a_recovery_is_refused(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, others = one.open(), one.open("other")
    writer = _flushed(files, "/a", b"sealed on the volumes")
    _before(monkeypatch, files, lambda: others.recover("/a", timeout=SOON))
    with pytest.raises(
        FencedWrite, match=r"/a was recovered under epoch \d+ by other.* and closed"
    ):
        writer.close()
    assert writer.closed
    assert content(others, "/a") == b"sealed on the volumes"
    assert others.verify("/a") == []


@pytest.mark.scenario("S48")
def test_a_late_close_while_another_appends_is_refused_and_disturbs_nobody(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, others = one.open(), one.open("other")
    writer = _flushed(files, "/a", b"first")
    heirs: list[FileWriter] = []

    def take_over() -> None:
        one.pass_s(SOFT_S + 1)
        heirs.append(others.append("/a"))

    _before(monkeypatch, files, take_over)
    with pytest.raises(FencedWrite) as caught:
        writer.close()
    (heir,) = heirs
    assert caught.value.now_held_by == others.holder
    assert f"then written by {others.holder} under epoch {heir.epoch}" in str(caught.value)
    heir.write(b" second")
    heir.close()
    assert content(others, "/a") == b"first second"


@pytest.mark.scenario("S49")
def test_bytes_that_never_left_the_writer_are_absent_after_a_take_over(one: World) -> None:
    dead, others = one.open("dead"), one.open("other")
    writer = dead.create("/a")
    writer.write(b"x" * 1000)
    one.pass_s(SOFT_S + 1)
    with others.append("/a") as heir:
        heir.write(b"y" * 32)
    assert content(others, "/a") == b"y" * 32
    with pytest.raises(LeaseLost):
        writer.close()
    assert content(others, "/a") == b"y" * 32


@pytest.mark.scenario("S50")
def test_of_several_appends_at_once_one_wins_and_the_others_learn_who(one: World) -> None:
    one.open().create("/a").close()
    clients = [one.open(f"client-{number}") for number in range(6)]
    start = threading.Barrier(len(clients))
    won: list[tuple[Namespace, FileWriter]] = []
    lost: list[FileHeld] = []

    def race(files: Namespace) -> None:
        start.wait()
        try:
            won.append((files, files.append("/a")))
        except FileHeld as error:
            lost.append(error)

    threads = [threading.Thread(target=race, args=(files,)) for files in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((winner, writer),) = won
    assert {(error.holder, error.epoch) for error in lost} == {(winner.holder, writer.epoch)}
    assert len(lost) == 5


@pytest.mark.scenario("S51")
def test_a_rename_races_with_append_and_every_byte_is_in_one_place(one: World) -> None:
    files, others = one.open(), one.open("other")
    files.create("/a").close()
    done = threading.Event()

    def rename() -> None:
        source, target = "/a", "/b"
        for _ in range(300):  # an even number: at the end it is /a again
            if done.is_set():
                return
            others.rename(source, target)
            source, target = target, source

    thread = threading.Thread(target=rename)
    thread.start()
    written = b""
    try:
        while len(written) < 90:
            piece = b"%03d" % len(written)
            with suppress(UnknownFile), files.append("/a") as writer:  # it may be /b just then
                writer.write(piece)
                written += piece
    finally:
        done.set()
        thread.join()
    (found,) = files.list()
    assert content(files, found.path) == written


def test_a_writer_that_failed_does_not_recover_a_new_file_at_its_old_path(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = _flushed(files, "/a", b"kept")
    files.rename("/a", "/b")
    innocent = _flushed(others, "/a", b"of somebody else")
    writer.write(b"lost")
    for root in one.roots:
        one.disk.fail(root, 28)
    with pytest.raises(VolumeUnusable):
        writer.flush()
    for root in one.roots:
        one.disk.heal(root)
    writer.close()
    assert content(files, "/b") == b"kept"
    innocent.write(b"!")
    innocent.close()
    assert content(files, "/a") == b"of somebody else!"


def test_a_writer_that_failed_and_was_robbed_does_not_rob_its_heir(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = _flushed(files, "/a", b"kept")
    writer.write(b"lost")
    for root in one.roots:
        one.disk.fail(root, 28)
    with pytest.raises(VolumeUnusable):
        writer.flush()
    for root in one.roots:
        one.disk.heal(root)
    one.pass_s(SOFT_S + 1)
    heir = others.append("/a")
    with pytest.raises(LeaseLost):
        writer.close()
    heir.write(b" and extended")
    heir.close()
    found = content(files, "/a")
    assert found.startswith(b"kept")
    assert found.endswith(b" and extended")


def test_a_file_whose_first_block_could_not_be_made_is_not_left_open(one: World) -> None:
    # HDFS-8870, HDFS-14694: a lease leaked by a failed open is kept alive by the other files.
    files, others = one.open(), one.open("other")
    files.create("/other")
    create = one.disk.create

    def full(path: str, *, what: str) -> int:
        if what == "meta":
            raise OSError(28, "No space left on device", path)
        return create(path, what=what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.disk, "create", full)
        with pytest.raises(VolumeUnusable, match="No space left on device"):
            files.create("/a")
    assert [each.path for each in others.list_open()] == ["/other"]
    with others.append("/a") as writer:
        writer.write(b"now there is room")
    assert content(files, "/a") == b"now there is room"


def test_a_refusal_is_said_in_every_call_that_follows(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = _flushed(files, "/a", b"x")
    others.recover("/a", timeout=AT_ONCE)
    writer.write(b"y")
    for call in (writer.flush, writer.sync, lambda: writer.write(b"z")):
        with pytest.raises(LeaseholdError, match=r"/a was recovered under epoch \d+ by other"):
            call()
    with pytest.raises(LeaseLost):
        writer.close()
    assert blocks(others, "/a")[0].length == 1


def test_a_broken_writer_does_not_rob_a_later_one_of_the_same_client(one: World) -> None:
    files = one.open()
    broken = files.create("/a")
    broken.write(b"one")
    broken.flush()
    files.recover("/a", timeout=AT_ONCE)
    heir = files.append("/a")
    heir.write(b"two")
    broken.give_up(VolumeUnusable("all volumes are gone"))
    with pytest.raises(VolumeUnusable):
        broken.close()
    heir.close()
    assert content(files, "/a") == b"onetwo"
