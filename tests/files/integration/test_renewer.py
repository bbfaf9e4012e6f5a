"""The renewer: it keeps the lease while files are open, and what happens when it can not."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.namespaces import AT_ONCE, HARD_S, OPTIONS, SOFT_S, World, content

from leasehold.errors import FileHeld, LeaseLost, StoreUnavailable
from leasehold.files import Namespace

OFTEN = replace(OPTIONS, check_interval=timedelta(milliseconds=10))


@contextmanager
def _locked(one: World, files: Namespace, *, busy_timeout_s: float = 0.02) -> Iterator[None]:
    """Somebody else keeps the database locked, for longer than this client waits."""
    database: Any = files._context.journal._database
    busy_timeout_before_s, database._writer._busy_limit_s = (
        database._writer._busy_limit_s,
        busy_timeout_s,
    )
    path = one.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            database._writer._busy_limit_s = busy_timeout_before_s


def _renewers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "leasehold-renewer"]


@pytest.mark.scenario("S24")
@pytest.mark.spec("F6")
def test_it_renews_at_half_the_soft_limit_once_for_all_files(both: World) -> None:
    written: list[str] = []
    files = both.open(hook=lambda step, moment: written.append(f"{moment} {step}"))
    for number in range(20):
        files.create(f"/{number}")
    written.clear()
    both.pass_s(SOFT_S / 2 - 1)
    assert not files._renewer.run_once()
    assert written == []
    both.pass_s(1)
    assert files._renewer.run_once()
    assert written == ["before renew", "after renew"]
    assert {each.idle_s for each in files.list_open()} == {0.0}
    assert not files._renewer.run_once()  # not again before another half


@pytest.mark.spec("F6")
def test_it_renews_only_while_a_file_is_open(both: World) -> None:
    written: list[str] = []
    files = both.open(hook=lambda step, moment: written.append(step))
    writer = files.create("/a")
    writer.close()
    written.clear()
    both.pass_s(SOFT_S)
    assert not files._renewer.run_once()
    assert written == []


def test_a_kept_lease_is_never_taken_over(both: World) -> None:
    files, others = both.open(), both.open("other")
    writer = files.create("/a")
    for _ in range(30):  # longer than the hard limit
        both.pass_s(SOFT_S / 2)
        assert files._renewer.run_once()
        assert others.monitor.run_once().recovered == 0
        with pytest.raises(FileHeld):
            others.append("/a")
    writer.write(b"x")
    writer.close()
    assert content(others, "/a") == b"x"


@pytest.mark.scenario("S26")
@pytest.mark.spec("F6")
def test_its_thread_begins_with_the_first_file_and_ends_after_the_last(one: World) -> None:
    files = one.open(options=OFTEN)
    before = _renewers()
    assert files._renewer._thread is None
    first = files.create("/a")
    (thread,) = set(_renewers()) - set(before)
    second = files.create("/b")
    assert set(_renewers()) - set(before) == {thread}
    first.close()
    assert thread.is_alive()
    second.close()
    thread.join(timeout=120)
    assert not thread.is_alive()
    files.create("/c")
    (another,) = set(_renewers()) - set(before)
    assert another is not thread


@pytest.mark.scenario("S26")
def test_its_thread_renews_by_itself(one: World) -> None:
    renewed = threading.Event()

    def hook(step: str, moment: str) -> None:
        if (step, moment) == ("renew", "after"):
            renewed.set()

    files = one.open(options=OFTEN, hook=hook)
    files.create("/a")
    one.pass_s(SOFT_S / 2)
    assert renewed.wait(timeout=120)
    assert files.status("/a").idle_s == 0.0


@pytest.mark.scenario("S27")
def test_no_thread_is_left_behind(one: World) -> None:
    before = set(_renewers())
    for _ in range(5):
        files = one.open(options=OFTEN)
        for number in range(4):
            files.create(f"/{number}", overwrite=True).close()
            assert len(set(_renewers()) - before) <= 1
        files.create("/left open", overwrite=True)
        files.close()
        assert set(_renewers()) - before == set()


@pytest.mark.scenario("S11")
def test_past_the_soft_limit_without_renewal_writes_go_on(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"-")
    writer.flush()  # the first bytes of a block need the journal, those after them do not
    with _locked(one, files):
        for _ in range(3):
            one.pass_s(SOFT_S)
            assert not files._renewer.run_once()
            writer.write(b"x")
            writer.sync()
    assert files._renewer.run_once()  # late, and nobody has taken anything
    with pytest.raises(FileHeld):
        others.append("/a")
    writer.close()
    assert content(others, "/a") == b"-xxx"


@pytest.mark.scenario("S11")
def test_past_the_hard_limit_without_renewal_the_writer_is_told_to_stop(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"before")
    writer.flush()
    with _locked(one, files):
        one.pass_s(HARD_S)
        assert not files._renewer.run_once()
        for call in (lambda: writer.write(b"late"), writer.flush, writer.sync, writer.close):
            with pytest.raises(LeaseLost) as caught:
                call()
            assert str(caught.value) == (
                "/a: the lease could not be renewed for 36000 s, which is the hard limit: others "
                "may have recovered the file; look at it, then append"
            )
            assert (caught.value.key, caught.value.epoch) == ("/a", writer.epoch)
            assert caught.value.reason == "local_deadline"
        assert content(files, "/a") == b"before"  # reading goes on
    assert files._renewer.open_files == 1  # the journal does not know yet
    with files.create("/new"):  # new files are no reason to keep the old one
        files._renewer.run_once()
        assert files._renewer.open_files == 1
        assert others.is_closed("/a")
    assert content(others, "/a") == b"before"
    assert writer.close() is None
    assert files.holders() == []


@pytest.mark.scenario("S28")
def test_a_renewal_that_times_out_is_tried_at_the_next_look(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    one.pass_s(SOFT_S / 2)
    with _locked(one, files):
        assert not files._renewer.run_once()
    assert files._renewer.run_once()
    writer.close()
    files.create("/b").close()


@pytest.mark.scenario("S28")
def test_a_close_that_races_with_a_renewal_that_hangs_ends(one: World) -> None:
    files = one.open()
    writer = files.create("/a")
    writer.write(b"x")
    one.pass_s(SOFT_S / 2)
    looked: list[bool] = []
    closed: list[object] = []
    with _locked(one, files, busy_timeout_s=30.0):
        threads = [
            threading.Thread(target=lambda: looked.append(files._renewer.run_once())),
            threading.Thread(target=lambda: closed.append(writer.close())),
        ]
        for thread in threads:
            thread.start()
        threads[1].join(timeout=0.1)
        assert not looked
        assert not closed
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert len(closed) == len(looked) == 1
    assert files.is_closed("/a")


@pytest.mark.scenario("S22")
def test_a_close_fails_cleanly_while_the_store_is_away_and_is_done_later(one: World) -> None:
    # HDFS-8870, HDFS-10549: a close that failed kept the file open for as long as the client lived.
    files, others = one.open(), one.open("other")
    first, second = files.create("/a"), files.create("/b")
    first.write(b"one")
    second.write(b"two")
    with _locked(one, files):
        for writer in (first, second):
            with pytest.raises(StoreUnavailable, match="by another connection of this process"):
                writer.close()
    assert [each.path for each in others.list_open()] == ["/a", "/b"]
    assert first.close() == others.status("/a")  # by hand
    files._renewer.run_once()  # and in the background
    assert others.list_open() == []
    assert (content(others, "/a"), content(others, "/b")) == (b"one", b"two")
    assert second.close() is None
    assert files._renewer.open_files == 0


def test_a_store_that_fails_between_two_blocks_loses_nothing_acknowledged(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a", block_bytes=4096)
    writer.write(b"a" * 4000)
    assert writer.flush() == 4000
    with _locked(one, files), pytest.raises(StoreUnavailable):
        writer.write(b"b" * 200)
    assert 4000 <= writer.acknowledged <= writer.length <= 4200
    writer.close()
    found = content(others, "/a")
    assert len(found) >= 4000
    assert found == (b"a" * 4000 + b"b" * 200)[: len(found)]
    assert others.verify("/a") == []
    with others.append("/a") as heir:
        heir.write(b"c")
    assert content(others, "/a") == found + b"c"


def test_a_lease_that_is_gone_is_heard_of_at_the_next_write(one: World) -> None:
    files, others = one.open(), one.open("other")
    writer = files.create("/a")
    writer.write(b"x")
    writer.flush()
    others.recover("/a", timeout=AT_ONCE)
    one.pass_s(SOFT_S / 2)
    assert not files._renewer.run_once()  # it has no lease any more: nothing to renew
    writer.write(b"y")
    with pytest.raises(LeaseLost, match=r"^the step under epoch \d+ was refused: /a was recovered"):
        writer.flush()
    with pytest.raises(LeaseLost):
        writer.close()
    assert files._renewer.open_files == 0
