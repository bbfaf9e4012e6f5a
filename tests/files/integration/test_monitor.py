"""The monitor: what it takes first, how long it looks, and what it does with files that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.namespaces import (
    AT_ONCE,
    ATTEMPT_S,
    HARD_S,
    OPTIONS,
    World,
    blocks,
    content,
    renew,
    steps,
)

from leasehold.errors import FencedWrite, StoreUnavailable
from leasehold.files import FileState, Namespace
from leasehold.files.monitor import RETRY_BACKOFF, MonitorPass
from leasehold.testing.disk import KillingDisk


class Died(BaseException):
    """The process is gone: nothing of ours runs after this."""


def _left(files: Namespace, path: str, *, replication: int | None = None) -> None:
    """A file that its writer left open."""
    writer = files.create(path, replication=replication)
    writer.write(path.encode())
    writer.flush()


def _order(files: Namespace) -> list[str]:
    """Which files were recovered, in the order in which it was done."""
    done = [
        entry
        for status in files.list()
        for entry in files.history(status.path)
        if entry.step == "recovered"
    ]
    return [entry.path for entry in sorted(done, key=lambda entry: entry.number)]


def _recovers(monkeypatch: pytest.MonkeyPatch, files: Namespace, act: Callable[[], object]) -> None:
    """Let something happen before each commit of a recovery."""
    journal = files._context.journal
    commit = journal.commit_recovery

    def committed(*args: object, **lost: object) -> object:
        act()
        return commit(*args, **lost)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "commit_recovery", committed)


@pytest.mark.spec("F4")
def test_the_oldest_lease_comes_first(both: World) -> None:
    first, second, third = both.open("first"), both.open("second"), both.open("third")
    _left(third, "/a")
    both.pass_s(5)
    _left(first, "/c")
    both.pass_s(5)
    _left(second, "/b")
    both.pass_s(5)
    renew(third)  # and so it is the youngest
    both.pass_s(HARD_S + 1)
    watcher = both.open("watcher")
    assert watcher.monitor.run_once() == MonitorPass(recovered=3)
    assert _order(watcher) == ["/c", "/b", "/a"]


@pytest.mark.spec("F4")
def test_it_looks_up_to_the_first_lease_that_has_not_ended(both: World) -> None:
    first, second, watcher = both.open("first"), both.open("second"), both.open("watcher")
    _left(first, "/a")
    both.pass_s(1)
    _left(second, "/b")
    both.pass_s(HARD_S - 0.5)  # the first is half a second past, the second half a second short
    assert watcher.monitor.run_once() == MonitorPass(recovered=1)
    assert (watcher.is_closed("/a"), watcher.is_closed("/b")) == (True, False)
    both.pass_s(1)
    assert watcher.monitor.run_once() == MonitorPass(recovered=1)


@pytest.mark.spec("F4")
def test_nothing_due_is_one_read_and_no_write(one: World) -> None:
    written: list[str] = []
    watcher = one.open("watcher", hook=lambda step, moment: written.append(step))
    files = one.open()
    for number in range(50):
        _left(files, f"/{number}")
    written.clear()
    reads: list[int] = []
    journal = watcher._context.journal
    due = journal.due

    def counted(*, limit: int) -> list[str]:
        reads.append(limit)
        return due(limit=limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "due", counted)
        assert watcher.monitor.run_once() == MonitorPass()
    assert len(reads) == 1
    assert written == []


@pytest.mark.spec("F4")
def test_a_pass_begins_nothing_after_its_budget_and_the_next_goes_on(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # HDFS-10220: many files due at once made the name node deaf until it was declared dead.
    files, watcher = one.open(), one.open("watcher")
    for number in range(7):
        _left(files, f"/{number}")
    one.pass_s(HARD_S + 1)
    _recovers(monkeypatch, watcher, lambda: one.pass_s(0.4))  # of a budget of one second
    assert watcher.monitor.run_once() == MonitorPass(recovered=3, left=True)
    assert watcher.monitor.run_once() == MonitorPass(recovered=3, left=True)
    assert watcher.monitor.run_once() == MonitorPass(recovered=1)
    assert watcher.list_open() == []


@pytest.mark.scenario("S02")
def test_a_hundred_expired_holders_in_a_few_bounded_passes(one: World) -> None:
    files = one.open()
    volumes = tuple(volume.id for volume in files.volumes)
    for number in range(100):
        files._context.journal.create(
            f"/{number:03}",
            replace(files._holder, id=f"client-{number:03}", token=f"token-{number:03}"),
            replication=3,
            block_bytes=4096,
            overwrite=False,
            volumes=volumes,
            request="died",
        )
    one.pass_s(HARD_S + 1)
    watcher = one.open("watcher")
    assert len(watcher.holders()) == 100
    looked = watcher.monitor.run_once()  # the clock stands still: no budget ends it
    assert (looked.recovered, looked.failed, looked.left) == (100, 0, False)
    assert watcher.list_open() == []
    assert watcher.holders() == []


@pytest.mark.scenario("S16")
def test_three_empty_files_of_one_holder_expire_together(both: World) -> None:
    files, watcher = both.open(), both.open("watcher")
    for path in ("/a", "/b", "/c"):
        files.create(path)
    both.pass_s(HARD_S + 1)
    assert watcher.monitor.run_once().recovered == 3
    assert [each.length for each in watcher.list()] == [0, 0, 0]
    assert watcher.holders() == []


@pytest.mark.spec("F4")
def test_a_file_that_fails_holds_up_no_other_and_is_tried_again_with_growing_pauses(
    both: World,
) -> None:
    # HDFS-4882: one file that could not be closed kept the monitor in a loop for ever.
    # HDFS-11945: a failed one was never tried again while others kept the lease of the monitor.
    files = both.open()
    _left(files, "/bad")
    away = [root for root in both.roots if list(root.glob("blocks/*/*"))]
    for root in away:
        root.rename(root.with_suffix(".away"))
    spare = both.roots[0].with_name("spare")
    good = both.open("good", volumes=[spare])
    _left(good, "/good")
    watcher = both.open("watcher", volumes=())
    both.pass_s(HARD_S + 1)
    assert watcher.monitor.run_once() == MonitorPass(recovered=1, failed=1)
    assert content(watcher, "/good") == b"/good"

    pauses: list[float] = []
    for attempt in range(1, 6):
        status = watcher.status("/bad")
        assert (status.state, status.attempts) == (FileState.RECOVERING, attempt)
        assert "no answer from" in status.trouble
        pauses.append(status.next_attempt_s)
        both.pass_s(status.next_attempt_s / 2)
        assert watcher.monitor.run_once() == MonitorPass()  # not yet
        _left(good, f"/good-{attempt}")
        both.pass_s(status.next_attempt_s / 2 + 0.001)
        assert watcher.monitor.run_once() == MonitorPass(failed=1)
    steps_s = [RETRY_BACKOFF.base_s * 2**number for number in range(5)]
    for pause, step in zip(pauses, steps_s, strict=True):
        assert step / 2 <= pause <= step
    for root in away:
        root.with_suffix(".away").rename(root)
    both.pass_s(watcher.status("/bad").next_attempt_s + 0.001)
    assert watcher.monitor.run_once() == MonitorPass(recovered=1)
    assert content(watcher, "/bad") == b"/bad"
    status = watcher.status("/bad")
    assert (status.attempts, status.trouble, status.next_attempt_s) == (0, "", 0.0)


def test_who_does_not_want_to_wait_for_the_next_attempt_asks_for_it(one: World) -> None:
    files, watcher = one.open(), one.open("watcher")
    _left(files, "/a")
    for root in one.roots:
        root.rename(root.with_suffix(".away"))
    one.pass_s(HARD_S + 1)
    for _ in range(4):
        watcher.monitor.run_once()
        one.pass_s(watcher.status("/a").next_attempt_s + 0.001)
    watcher.monitor.run_once()
    for root in one.roots:
        root.with_suffix(".away").rename(root)
    assert watcher.status("/a").next_attempt_s > 1
    assert one.open("asks").recover("/a", timeout=AT_ONCE).length == 2


def test_a_monitor_that_died_in_the_middle_is_replaced_after_the_time_of_its_attempt(
    both: World,
) -> None:
    files = both.open()
    _left(files, "/a")
    _left(files, "/b")
    both.pass_s(HARD_S + 1)

    def dies() -> None:
        raise Died("while it sealed")

    killed = both.open("killed", disk=KillingDisk(both.disk, "after rename seal", 1, dies))
    with pytest.raises(Died):
        killed.monitor.run_once()
    watcher = both.open("watcher")
    assert watcher.monitor.run_once() == MonitorPass(
        recovered=1
    )  # the one that the other had not begun
    assert watcher.status("/a").state is FileState.RECOVERING
    both.pass_s(ATTEMPT_S - 1)
    assert watcher.monitor.run_once() == MonitorPass()
    both.pass_s(2)
    assert watcher.monitor.run_once() == MonitorPass(recovered=1)
    assert (content(watcher, "/a"), watcher.verify("/a")) == (b"/a", [])


def test_one_that_is_overtaken_at_a_file_goes_on_with_the_next(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, others = both.open(), both.open("other")
    for path in ("/a", "/b", "/c"):
        _left(files, path)
    both.pass_s(HARD_S + 1)
    options = replace(OPTIONS, monitor_budget=timedelta(hours=1))
    watcher = both.open("watcher", options=options)
    done: list[str] = []

    def overtake_the_first() -> None:
        if not done:
            done.append("/a")
            both.pass_s(ATTEMPT_S)
            others.recover("/a", timeout=AT_ONCE)

    _recovers(monkeypatch, watcher, overtake_the_first)
    looked = watcher.monitor.run_once()
    assert (looked.recovered, looked.failed) == (2, 1)
    assert {path: content(watcher, path) for path in ("/a", "/b", "/c")} == {
        "/a": b"/a",
        "/b": b"/b",
        "/c": b"/c",
    }
    assert watcher.list_open() == []


def test_two_monitors_at_once_recover_every_file_once(one: World) -> None:
    files = one.open()
    for number in range(12):
        _left(files, f"/{number:02}")
    one.pass_s(HARD_S + 1)
    watchers = [one.open("left"), one.open("right")]
    passes: list[MonitorPass] = []
    threads = [
        threading.Thread(target=lambda each=each: passes.append(each.monitor.run_once()))
        for each in watchers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.recovered for each in passes) == 12
    for number in range(12):
        path = f"/{number:02}"
        assert steps(files, path).count("recovery begun") == 1
        assert (content(files, path), files.verify(path)) == (path.encode(), [])


def test_what_the_monitor_closed_is_in_the_journal_when_it_says_so(both: World) -> None:
    # HDFS-17518: the close of the monitor was not made durable.
    _left(both.open(), "/a")
    both.pass_s(HARD_S + 1)
    committed: list[tuple[str, str]] = []
    watcher = both.open("watcher", hook=lambda step, moment: committed.append((step, moment)))
    committed.clear()
    assert watcher.monitor.run_once().recovered == 1
    assert ("recovered", "after") in committed
    assert both.open("another").is_closed("/a")


def test_a_writer_that_comes_back_before_the_monitor_keeps_its_files(both: World) -> None:
    files, watcher = both.open(), both.open("watcher")
    writer = files.create("/a")
    both.pass_s(HARD_S + 1)
    renew(files)  # late, and nobody has robbed it
    assert watcher.monitor.run_once() == MonitorPass()
    writer.write(b"still here")
    writer.close()
    assert content(watcher, "/a") == b"still here"


def test_a_file_that_is_deleted_while_it_is_recovered_stays_deleted(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, watcher, others = both.open(), both.open("watcher"), both.open("other")
    _left(files, "/a")
    _left(files, "/b")
    both.pass_s(HARD_S + 1)
    _recovers(
        monkeypatch, watcher, lambda: others.delete("/a") if others.list("/", limit=2)[1:] else None
    )
    looked = watcher.monitor.run_once()
    assert (looked.recovered, looked.failed) == (1, 1)
    assert [each.path for each in watcher.list()] == ["/b"]
    watcher.monitor.run_once()
    (block,) = blocks(watcher, "/b")
    left = {path.name[:16] for root in both.roots for path in root.glob("blocks/*/*")}
    assert left == {f"{block.id:016x}"}


def test_the_thread_looks_by_itself_and_survives_trouble_with_the_store(one: World) -> None:
    files = one.open()
    _left(files, "/a")
    one.pass_s(HARD_S + 1)
    options = replace(OPTIONS, monitor_interval=timedelta(milliseconds=10))
    watcher = one.open("watcher", options=options)
    journal = watcher._context.journal
    due, recovered, troubles = journal.due, threading.Event(), [1, 2, 3]

    def failing(*, limit: int) -> list[str]:
        if troubles:
            troubles.pop()
            raise StoreUnavailable("not just now")
        found = due(limit=limit)
        if not found:
            recovered.set()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "due", failing)
        watcher.monitor.start()
        assert recovered.wait(timeout=120)
        watcher.monitor.close()
    assert content(watcher, "/a") == b"/a"


def test_the_monitor_removes_what_was_given_up_and_waits_for_volumes_that_are_away(
    one: World,
) -> None:
    files, watcher = one.open(), one.open("watcher")
    _left(files, "/a")
    one.roots[1].rename(one.roots[1].with_suffix(".away"))
    assert files.delete("/a") == 1
    assert watcher.monitor.run_once().removed == 0
    one.roots[1].with_suffix(".away").rename(one.roots[1])
    assert list(one.roots[1].glob("blocks/*/*"))
    assert watcher.monitor.run_once().removed == 1
    assert list(one.roots[1].glob("blocks/*/*")) == []


def test_the_old_writer_hears_who_has_recovered_its_file(both: World) -> None:
    files, watcher = both.open(), both.open("watcher")
    writer = files.create("/a")
    writer.write(b"x")
    writer.flush()
    both.pass_s(HARD_S + 1)
    watcher.monitor.run_once()
    with pytest.raises(FencedWrite) as caught:
        writer.close()
    assert caught.value.reason == "recovered"
    assert "was recovered under epoch" in str(caught.value)
    assert " by monitor-" in str(caught.value)
