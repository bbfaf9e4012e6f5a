"""Files as one uses them every day: write, read, rename, delete, look around, take over."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.namespaces import (
    AT_ONCE,
    HARD_S,
    OPTIONS,
    SOFT_S,
    SOON,
    World,
    blocks,
    content,
    renew,
    steps,
)

from leasehold.errors import (
    FencedWrite,
    FileExists,
    FileHeld,
    InvalidOptions,
    TailUncertain,
    UnknownFile,
    UsageError,
)
from leasehold.files import BlockState, FileOptions, FileState, RecoveryProgress
from leasehold.files.block_meta import PIECE_BYTES
from leasehold.files.reader import FileReader

# ---------------------------------------------------------------- write and read


def test_a_file_is_written_closed_and_read_back(both: World) -> None:
    files = both.open()
    with files.create("/a/first") as writer:
        assert writer.write(b"hello ") == 6
        assert writer.write(b"world") == 5
        assert not files.is_closed("/a/first")
    assert files.is_closed("/a/first")
    assert content(files, "/a/first") == b"hello world"
    status = files.status("/a/first")
    assert (status.state, status.length, status.holder) == (FileState.CLOSED, 11, "")
    (block,) = blocks(files, "/a/first")
    assert len(block.volumes) == 3
    assert files.verify("/a/first") == []
    assert steps(files, "/a/first") == ["create", "close"]


def test_close_says_what_the_file_is_now_and_again_does_nothing(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"abc")
    closed = writer.close()
    assert closed == files.status("/a")
    assert writer.closed
    assert writer.close() is None
    with pytest.raises(UsageError, match=r"^/a is closed: append to it to write more$"):
        writer.write(b"d")


def test_what_was_flushed_is_seen_and_what_was_not_is_not(both: World) -> None:
    files, others = both.open(), both.open("reader")
    writer = files.create("/a")
    writer.write(b"12345")
    reader = others.read("/a")
    assert reader.length == 0
    assert writer.flush() == 5
    assert reader.length == 0  # as it was when it looked
    assert reader.refresh() == 5
    writer.write(b"678")
    assert reader.refresh() == 5
    assert writer.sync() == 8
    assert reader.refresh() == 8
    assert reader.read() == b"12345678"
    assert (writer.length, writer.acknowledged) == (8, 8)


def test_a_file_of_many_blocks_reads_as_one(one: World) -> None:
    files = one.open()
    data = bytes(range(256)) * 160  # ten blocks of 4096
    with files.create("/big", block_bytes=4096) as writer:
        for at in range(0, len(data), 1000):
            writer.write(data[at : at + 1000])
        assert writer.length == len(data)
    assert [block.length for block in blocks(files, "/big")] == [4096] * 10
    reader = files.read("/big")
    assert reader.read() == data
    assert reader.read_at(4000, 200) == data[4000:4200]
    assert reader.read_at(len(data) - 3, 100) == data[-3:]
    assert reader.read_at(len(data), 1) == b""
    reader.seek(-5, 2)
    assert (reader.tell(), reader.read()) == (len(data) - 5, data[-5:])
    reader.seek(0)
    assert b"".join(reader.chunks(777)) == data
    assert files.verify("/big") == []


def test_one_big_write_crosses_the_ends_of_blocks(one: World) -> None:
    files = one.open()
    data = bytes(1000) + b"x" * (3 << 20)
    with files.create("/big", block_bytes=1 << 20) as writer:
        writer.write(data)
    assert content(files, "/big") == data
    assert [block.length for block in blocks(files, "/big")] == [1 << 20] * 3 + [1000]


def test_a_reader_refuses_places_that_are_nowhere(one: World) -> None:
    files = one.open()
    files.create("/a").close()
    reader = files.read("/a")
    with pytest.raises(UsageError, match=r"must not be negative, not -1 and 5$"):
        reader.read_at(-1, 5)
    with pytest.raises(UsageError, match=r"^there is nothing before the beginning of /a$"):
        reader.seek(-1)
    with pytest.raises(UnknownFile, match=r"^there is no file /b: look for the right path"):
        files.read("/b")


def test_append_goes_on_in_a_new_block_under_a_higher_epoch(both: World) -> None:
    files = both.open()
    with files.create("/a") as writer:
        writer.write(b"one")
        first = writer.epoch
    with files.append("/a") as writer:
        writer.write(b" two")
        assert writer.epoch > first
        assert content(files, "/a") == b"one"
    assert content(files, "/a") == b"one two"
    assert [(block.start, block.length) for block in blocks(files, "/a")] == [(0, 3), (3, 4)]
    with pytest.raises(UnknownFile, match=r"^there is no file /b"):
        files.append("/b")


def test_an_error_in_the_block_is_heard_and_the_file_is_closed(one: World) -> None:
    files = one.open()

    def fails_half_way() -> None:
        with files.create("/a") as writer:
            writer.write(b"half")
            raise LookupError("of the caller")

    with pytest.raises(LookupError, match="of the caller"):
        fails_half_way()
    assert files.is_closed("/a")
    assert content(files, "/a") == b"half"


def test_several_threads_write_to_one_file_and_nothing_is_torn(one: World) -> None:
    files = one.open()
    line = 97
    with files.create("/log", block_bytes=8192) as writer:

        def work(letter: bytes) -> None:
            for _ in range(40):
                writer.write(letter * line)
                writer.flush()

        threads = [threading.Thread(target=work, args=(each,)) for each in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    data = content(files, "/log")
    lines = [data[at : at + line] for at in range(0, len(data), line)]
    assert sorted(lines) == [letter * line for letter in (b"a", b"b", b"c") for _ in range(40)]
    assert files.verify("/log") == []


# ---------------------------------------------------------------- leases


@pytest.mark.spec("F1")
def test_one_lease_covers_all_the_files_of_a_holder(both: World) -> None:
    files, others = both.open("ours", address="http://ours"), both.open("theirs")
    for path in ("/a", "/b/c", "/b/d"):
        files.create(path)
    both.pass_s(5.0)
    others.create("/e")
    both.pass_s(1.0)
    first, second = files.holders()  # the most silent first
    assert (first.id, first.open_files, first.idle_s) == (files.holder, 3, 6.0)
    assert (second.id, second.open_files) == (others.holder, 1)
    assert (second.idle_s, second.pid) == (1.0, first.pid)
    found = files.status("/b/c")
    assert (found.holder, found.address) == (files.holder, "http://ours")
    assert (found.host, found.idle_s) == (first.host, 6.0)
    renew(files)  # one row, and all of its files are as fresh
    assert {each.idle_s for each in files.list_open("/b")} == {0.0}
    assert [each.id for each in files.holders()] == [others.holder, files.holder]


@pytest.mark.spec("F2")
def test_a_second_writer_is_told_who_holds_the_file(both: World) -> None:
    files, others = both.open("first", address="http://first"), both.open("second")
    writer = files.create("/a")
    both.pass_s(600.0)
    held_by = files.holders()[0]
    since = files.status("/a").opened_at
    for attempt in (others.create, others.append):
        with pytest.raises(FileHeld) as caught:
            attempt("/a")
        error = caught.value
        assert str(error) == (
            f"/a is being written by {files.holder} on {held_by.host} (process {held_by.pid}) "
            f"under epoch {writer.epoch} since {since}, last heard of 600.0 s ago: if it stays "
            "silent the file can be taken over in 3000.0 s; recover() does not wait"
        )
        assert (error.path, error.holder, error.host) == ("/a", files.holder, held_by.host)
        assert (error.since, error.epoch) == (since, writer.epoch)
        assert error.retry_after_s == 3000.0
        assert error.address == "http://first"
    assert files.holder.startswith("first")
    with pytest.raises(FileHeld, match=rf"^/a is open already by this very holder {files.holder}"):
        files.append("/a")
    writer.write(b"still ours")
    assert writer.flush() == 10


@pytest.mark.spec("F2")
def test_create_and_append_renew_the_lease(both: World) -> None:
    files = both.open()
    files.create("/done").close()
    files.create("/a")
    both.pass_s(100.0)
    assert files.status("/a").idle_s == 100.0
    files.create("/b")
    assert files.status("/a").idle_s == 0.0
    both.pass_s(100.0)
    files.append("/done")
    assert files.status("/a").idle_s == 0.0


@pytest.mark.spec("F3")
def test_after_the_soft_limit_another_takes_over_and_after_the_hard_one_the_monitor(
    both: World,
) -> None:
    files, others = both.open("dead"), both.open("heir")
    for path in ("/a", "/b", "/c"):
        writer = files.create(path)
        writer.write(path.encode())
        writer.flush()
    both.pass_s(SOFT_S)  # to the second: not yet
    with pytest.raises(FileHeld):
        others.append("/a")
    assert others.monitor.run_once().recovered == 0
    both.pass_s(1.0)
    with others.append("/a") as heir:
        heir.write(b" goes on")
    assert content(others, "/a") == b"/a goes on"
    with pytest.raises(FileExists, match=r"^/b is there already: append to it"):
        others.create("/b")  # recovered, and then it is a file like any other
    assert others.is_closed("/b")
    assert others.monitor.run_once().recovered == 0  # nobody has asked for /c
    both.pass_s(HARD_S - SOFT_S)
    assert others.monitor.run_once().recovered == 1
    assert content(others, "/c") == b"/c"
    assert others.list_open() == []


@pytest.mark.spec("F5")
def test_closing_takes_the_path_out_of_the_lease_and_the_last_one_ends_it(both: World) -> None:
    files = both.open()
    first, second = files.create("/a"), files.create("/b")
    assert [each.open_files for each in files.holders()] == [2]
    first.close()
    assert [each.open_files for each in files.holders()] == [1]
    assert [each.path for each in files.list_open()] == ["/b"]
    second.close()
    assert files.holders() == []
    assert files.list_open() == []


# ---------------------------------------------------------------- recovery on request


@pytest.mark.spec("F7")
def test_recover_closes_a_file_at_once_and_tells_how_far_it_is(both: World) -> None:
    files, others = both.open(), both.open("other")
    writer = files.create("/a")
    writer.write(b"x" * 1500)
    writer.flush()
    reported: list[RecoveryProgress] = []
    status = others.recover("/a", timeout=SOON, progress=reported.append)
    assert (status.state, status.length) == (FileState.CLOSED, 1500)
    assert status.epoch > writer.epoch
    assert [each.step for each in reported] == [
        "asking 3 volumes",
        "agreeing on the length",
        "sealing at 1,500 bytes",
        "closed",
    ]
    assert {(each.path, each.attempt) for each in reported} == {("/a", 1)}
    assert reported[-1].bytes_read == 3 * 1500
    (block,) = blocks(others, "/a")
    assert (block.generation, block.state) == (status.epoch, BlockState.COMPLETE)
    assert others.verify("/a") == []
    writer.write(b"late")
    with pytest.raises(FencedWrite, match=r"/a was recovered under epoch \d+ by other"):
        writer.flush()
    assert content(others, "/a") == b"x" * 1500
    assert others.refused() == 1


def test_recover_waits_no_longer_than_it_may_and_says_what_is_missing(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"x")
    writer.flush()
    for root in one.roots:
        root.rename(root.with_suffix(".away"))
    with pytest.raises(TailUncertain, match=r"no answer from .*Nothing was dropped: bring back"):
        others.recover("/a", timeout=AT_ONCE)
    status = others.status("/a")
    assert (status.state, status.attempts) == (FileState.RECOVERING, 1)
    assert "no answer from" in status.trouble
    for root in one.roots:
        root.with_suffix(".away").rename(root)
    assert others.recover("/a", timeout=AT_ONCE).length == 1


def test_recover_waits_until_the_volumes_are_back(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"x")
    writer.flush()
    for root in one.roots:
        root.rename(root.with_suffix(".away"))
    reported: list[str] = []

    def bring_them_back(progress: RecoveryProgress) -> None:
        reported.append(progress.step)
        if progress.step.startswith("waiting: no usable copy"):
            for root in one.roots:
                if not root.exists():
                    root.with_suffix(".away").rename(root)

    assert others.recover("/a", timeout=SOON, progress=bring_them_back).length == 1
    assert reported[-1] == "closed"


# ---------------------------------------------------------------- paths


def test_a_rename_takes_an_open_file_along(both: World) -> None:
    files, others = both.open(), both.open("other")
    writer = files.create("/in/part-1")
    writer.write(b"one")
    writer.flush()
    assert others.rename("/in/part-1", "/done/1") == 1
    writer.write(b" two")
    writer.close()
    assert content(files, "/done/1") == b"one two"
    with pytest.raises(UnknownFile):
        files.status("/in/part-1")


def test_a_directory_is_renamed_with_all_that_is_in_it(both: World) -> None:
    files = both.open()
    writer = files.create("/in/x/1")
    files.create("/in/y").close()
    files.create("/in2").close()
    assert files.rename("/in", "/out") == 2
    writer.write(b"!")
    writer.close()
    assert [each.path for each in files.list()] == ["/in2", "/out/x/1", "/out/y"]
    with pytest.raises(FileExists):
        files.rename("/out/y", "/in2")
    assert files.rename("/out/x/1", "/in2", overwrite=True) == 1
    assert content(files, "/in2") == b"!"


def test_delete_refuses_the_writer_and_removes_the_replicas(both: World) -> None:
    files, others = both.open(), both.open("other")
    writer = files.create("/d/a")
    writer.write(b"x")
    writer.flush()
    files.create("/d/b").close()
    with pytest.raises(FileExists, match=r"^/d is a directory, /d/a lies below it: say recursive"):
        others.delete("/d")
    assert others.delete("/d", recursive=True) == 2
    assert others.list() == []
    writer.write(b"y")
    with pytest.raises(UnknownFile, match=r"^/d/a \(file \d+\) was deleted or overwritten"):
        writer.flush()
    with pytest.raises(UnknownFile):
        writer.close()
    assert [path for root in both.roots for path in root.glob("blocks/*/*")] == []
    assert others.delete("/d", recursive=True) == 0  # as when it is done twice


def test_files_are_listed_page_by_page(both: World) -> None:
    files = both.open()
    for name in ("a/1", "a/2", "a/3", "ab", "b"):
        files.create(f"/{name}").close()
    assert [each.path for each in files.list("/a")] == ["/a/1", "/a/2", "/a/3"]
    page = files.list("/", limit=2)
    assert [each.path for each in page] == ["/a/1", "/a/2"]
    page = files.list("/", after=page[-1].path, limit=2)
    assert [each.path for each in page] == ["/a/3", "/ab"]


def test_open_files_are_listed_by_how_long_their_holder_was_silent(both: World) -> None:
    files, others = both.open(), both.open("other")
    files.create("/old")
    both.pass_s(100.0)
    others.create("/new")
    others.create("/closed").close()
    assert [each.path for each in files.list_open()] == ["/old", "/new"]
    minute = timedelta(seconds=60)
    (old,) = files.list_open(older_than=minute)
    assert (old.path, old.idle_s) == ("/old", 100.0)
    (new,) = files.list_open(after_id=old.id)
    assert new.path == "/new"


# ---------------------------------------------------------------- opening


def test_volumes_are_remembered(one: World) -> None:
    one.open().create("/a").close()
    files = one.open(volumes=())
    assert sorted(volume.root for volume in files.volumes) == sorted(map(str, one.roots))
    files.create("/b").close()


def test_a_namespace_needs_a_volume(one: World) -> None:
    with pytest.raises(UsageError, match=r"has no volumes yet: name one or more directories"):
        one.open(volumes=())


def test_more_replicas_than_volumes_are_refused(one: World) -> None:
    with pytest.raises(
        InvalidOptions, match=r"^replication <= number of volumes does not hold \(4 > 3\): add"
    ):
        one.open(options=FileOptions(replication=4))


def test_blocks_take_turns_on_the_volumes(one: World) -> None:
    files = one.open(options=FileOptions(replication=2, check_interval=OPTIONS.check_interval / 60))
    used = set()
    for number in range(6):
        with files.create(f"/{number}") as writer:
            writer.write(b"x")
        used.add(blocks(files, f"/{number}")[0].volumes)
    assert len(used) == 3
    assert {len(each) for each in used} == {2}


def test_closing_the_namespace_leaves_and_ends_its_threads(one: World) -> None:
    before = set(threading.enumerate())
    files = one.open(run_monitor=True)
    files.create("/a").close()
    files.close()
    ours = [each for each in set(threading.enumerate()) - before if "leasehold" in each.name]
    assert [each.name for each in ours if "sync" not in each.name] == []


# ---------------------------------------------------- other machines of the same name


@pytest.mark.spec("F6")
def test_a_reader_on_another_machine_of_the_same_name_sees_what_was_acknowledged(
    one: World,
) -> None:
    """The writer goes on there: no restart has put in doubt what it has acknowledged."""
    files = one.open()
    with files.create("/a") as writer:
        writer.write(b"acknowledged")
        writer.flush()
        writer.write(bytes(4 * PIECE_BYTES))  # on all volumes, and no reader may see it
        context = replace(files._context, boot_id=bytes(16), up_s=60.0)
        assert FileReader("/a", context).length == len(b"acknowledged")
        # What a restart of this machine has put in doubt is what all volumes have.
        restarted = replace(context, up_s=0.0)
        assert FileReader("/a", restarted).length > len(b"acknowledged")
