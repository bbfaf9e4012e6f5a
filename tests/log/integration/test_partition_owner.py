"""Who writes a partition: several producer processes, real signals, take-over and hand-over."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.pausing import pause
from tests.support.postgres import fresh_database

from leasehold.errors import FileHeld
from leasehold.events import Event
from leasehold.files import FileState
from leasehold.log import Log, ProducerOptions, Receipt, StreamSettings, owner_link
from leasehold.log.owner_link import OwnerClient, OwnerReply, OwnerRequest, send_reply
from leasehold.log.partition_owner import create_segment
from leasehold.log.producer_batch import OwnerMoved, OwnerSilent, StreamPartition
from leasehold.log.segment_format import SegmentHeader, encode_segment_header
from leasehold.log.streams import segment_path, segments

SOON_S = 120
ANSWER_LIMIT_S = 1.0


class Process:
    """A producer in a process; its words can be waited for."""

    def __init__(self, url: str, name: str) -> None:
        arguments = [url, "orders", name, str(ANSWER_LIMIT_S)]
        self.name = name
        self._url = url
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.producer_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        self.heard: list[dict[str, Any]] = []

    def send(self, count: int, *, batch: int = 10, partition: int | None = 0) -> None:
        assert self._popen.stdin is not None
        order = {"send": count, "batch": batch, "partition": partition}
        self._popen.stdin.write(json.dumps(order) + "\n")
        self._popen.stdin.flush()

    def says(self, event: str, *, times: int = 1) -> dict[str, Any]:
        """Wait until it has said this so many times more; return the last of its words."""
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.heard.append(json.loads(line))
            times -= self.heard[-1]["event"] == event
            if times <= 0:
                return self.heard[-1]
        pytest.fail(f"{self.name} ended without the expected words: {self.heard[-5:]}")

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGSTOP:
            pause(self._popen.pid, self._url)
        else:
            self._popen.send_signal(number)

    def end(self) -> None:
        """Close it in good order and hear the rest."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self.heard += map(json.loads, self._popen.stdout)
        assert self._popen.wait(SOON_S) == 0

    def destroy(self) -> None:
        self._popen.kill()
        self._popen.wait(SOON_S)
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def acknowledged(self) -> set[int]:
        return {
            number
            for said in self.heard
            if said["event"] == "stored"
            for number in range(said["first"], said["first"] + said["count"])
        }


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    url = f"sqlite:///{tmp_path}/log.db"
    with Log.open(url, volumes=[tmp_path / "a", tmp_path / "b"]) as opened:
        opened.create("orders", partitions=1)
        yield opened


@pytest.fixture
def another(tmp_path: Path, log: Log) -> Iterator[Callable[[], Log]]:
    """Opens the same log again, as another process would."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Log.open(f"sqlite:///{tmp_path}/log.db"))


@pytest.fixture
def start(tmp_path: Path, log: Log) -> Iterator[Callable[[str], Process]]:
    with ExitStack() as stack:

        def started(name: str) -> Process:
            process = Process(f"sqlite:///{tmp_path}/log.db", name)
            stack.callback(process.destroy)
            return process

        yield started


def bodies(log: Log, partition: int = 0) -> list[str]:
    """All events of a partition; numbers have no gaps, and times and offsets do not go back."""
    with log.reader("orders", partition) as reader:
        events = [event for batch in reader.batches() for event in batch]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert all(
        one.enqueued_at <= two.enqueued_at and one.offset < two.offset  # type: ignore[operator]
        for one, two in pairwise(events)
    )
    return [event.body.decode() for event in events]


def numbers_by_name(found: list[str]) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for body in found:
        name, number = body.split(":")
        numbers[name].append(int(number))
    return numbers


def receipts(*triples: tuple[int, int, bool]) -> tuple[Receipt, ...]:
    return tuple(
        Receipt(partition=0, first_sequence=first, count=count, duplicate=duplicate)
        for first, count, duplicate in triples
    )


@pytest.mark.process
def test_three_producer_processes_store_every_event_once_and_in_order(
    log: Log, start: Callable[[str], Process]
) -> None:
    processes = [start(name) for name in ("ann", "bob", "cid")]
    for process in processes:
        process.says("ready")
    for process in processes:
        process.send(600)
    for process in processes:
        process.says("done")
        process.end()
    found = numbers_by_name(bodies(log))
    assert found == {name: list(range(600)) for name in ("ann", "bob", "cid")}
    assert not log.verify("orders")
    assert not log.info("orders").parts[0].writer


@pytest.mark.spec("F8")
@pytest.mark.process
def test_an_owner_killed_in_the_middle_loses_nothing_that_was_acknowledged(
    log: Log, start: Callable[[str], Process]
) -> None:
    owner, other = start("owner"), start("other")
    owner.says("ready")
    other.says("ready")
    owner.send(100_000)
    owner.says("stored", times=3)
    other.send(400)
    other.says("stored", times=2)
    owner.signal(signal.SIGKILL)
    done = other.says("done")
    other.end()
    assert done["taken"] == 1
    found = numbers_by_name(bodies(log))
    assert found["other"] == list(range(400))
    assert found["owner"] == list(range(len(found["owner"])))  # in order, once, without a gap
    assert owner.acknowledged <= set(found["owner"])
    assert not log.verify("orders")


@pytest.mark.spec("F8", "B5")
@pytest.mark.process
def test_a_stopped_owner_is_replaced_and_its_late_bytes_never_appear(
    log: Log, start: Callable[[str], Process]
) -> None:
    owner, other = start("owner"), start("other")
    owner.says("ready")
    other.says("ready")
    owner.send(3000)
    owner.says("stored", times=3)
    owner.signal(signal.SIGSTOP)
    other.send(200)
    assert other.says("done")["taken"] == 1
    before = bodies(log)
    owner.signal(signal.SIGCONT)
    done = owner.says("done")
    owner.end()
    other.end()
    after = bodies(log)
    assert after[: len(before)] == before
    assert numbers_by_name(after) == {"owner": list(range(3000)), "other": list(range(200))}
    assert owner.acknowledged == set(range(3000))
    assert done["fenced"] > 0
    assert not log.verify("orders")


@pytest.mark.process
def test_an_orderly_close_hands_the_partition_over(
    log: Log, start: Callable[[str], Process]
) -> None:
    owner, other = start("owner"), start("other")
    owner.says("ready")
    other.says("ready")
    owner.send(20)
    owner.says("done")
    other.send(2000)
    other.says("stored")
    owner.end()
    assert other.says("done")["taken"] == 1
    other.end()
    assert numbers_by_name(bodies(log)) == {"owner": list(range(20)), "other": list(range(2000))}
    sealed = segments(log.files, "orders", 0)
    assert len(sealed) == 2
    assert all(each.state is FileState.CLOSED for each in sealed)
    assert not any("recover" in each.step for each in log.files.history(sealed[0].path))


def test_two_that_race_for_every_partition_store_everything_once(
    log: Log, another: Callable[[], Log]
) -> None:
    log.create("raced", partitions=8)
    logs = [log, another()]
    together = threading.Barrier(len(logs))

    def race(which: int) -> None:
        with logs[which].producer("raced") as producer:
            together.wait(SOON_S)
            for partition in range(8):
                events = [Event(body=f"{which}:{number}".encode()) for number in range(20)]
                producer.send(events, partition=partition)

    threads = [threading.Thread(target=race, args=(which,)) for which in range(len(logs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    for partition in range(8):
        with log.reader("raced", partition) as reader:
            events = [event for batch in reader.batches() for event in batch]
        assert [event.sequence_number for event in events] == list(range(40))
        found = numbers_by_name([event.body.decode() for event in events])
        assert found == {"0": list(range(20)), "1": list(range(20))}
    assert sum(each.counts().taken for each in logs) == 8
    assert sum(each.counts().recovered for each in logs) == 0


def test_a_second_log_forwards_to_the_owner(log: Log, another: Callable[[], Log]) -> None:
    with log.producer("orders") as owner, another().producer("orders") as other:
        assert owner.send(Event(body=b"a")).result(SOON_S) == receipts((0, 1, False))
        assert other.send(Event(body=b"b")).result(SOON_S) == receipts((1, 1, False))
        assert owner.send(Event(body=b"c")).result(SOON_S) == receipts((2, 1, False))
    assert bodies(log) == ["a", "b", "c"]
    assert log.counts().taken == 1


def test_an_answer_that_is_lost_on_the_way_does_not_double_the_events(
    log: Log, another: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[OwnerReply] = []

    def losing(line: Any, reply: OwnerReply) -> None:
        if reply.stored and not lost:
            lost.append(reply)
            raise ConnectionResetError("lost on purpose")
        send_reply(line, reply)

    monkeypatch.setattr(owner_link, "send_reply", losing)
    with log.producer("orders") as owner, another().producer("orders") as other:
        owner.send(Event(body=b"a")).result(SOON_S)
        again = other.send([Event(body=b"b"), Event(body=b"c")]).result(SOON_S)
        owner.send(Event(body=b"d")).result(SOON_S)
    assert lost
    assert again == receipts((1, 2, True))
    assert bodies(log) == ["a", "b", "c", "d"]
    assert log.counts().duplicates == 2


def test_an_owner_on_another_machine_is_named(
    log: Log, another: Callable[[], Log], tmp_path: Path
) -> None:
    with log.producer("orders") as owner, another().producer("orders") as other:
        owner.send(Event(body=b"a")).result(SOON_S)
        with sqlite3.connect(tmp_path / "log.db") as database:
            database.execute("UPDATE fs_holder SET host = 'elsewhere'")
        database.close()
        with pytest.raises(FileHeld, match="elsewhere") as refused:
            other.send(Event(body=b"b")).result(SOON_S)
        assert refused.value.holder == log.files.holder
    assert bodies(log) == ["a"]


def _boot_of_another_machine(path: Path, *, idle: bool = False) -> None:
    """Say that the owner has a socket on a machine with the same host name."""
    boot = "0123456789ab"
    renewed = "renewed_s - 1e9" if idle else "renewed_s"
    with sqlite3.connect(path) as database:
        query = "SELECT address FROM fs_holder WHERE address != ''"
        (address,) = database.execute(query).fetchone()
        directory, _, name = address.rpartition("/")
        elsewhere = f"{directory}/{boot}-{name.rpartition('-')[2]}"
        database.execute(f"UPDATE fs_holder SET address = ?, renewed_s = {renewed}", (elsewhere,))
    database.close()


def test_an_owner_on_another_machine_of_the_same_name_is_not_fenced_before_its_time(
    log: Log, another: Callable[[], Log], tmp_path: Path
) -> None:
    with log.producer("orders") as owner, another().producer("orders") as other:
        owner.send(Event(body=b"a")).result(SOON_S)
        _boot_of_another_machine(tmp_path / "log.db")
        with pytest.raises(FileHeld, match="another machine that is called") as refused:
            other.send(Event(body=b"b")).result(SOON_S)
        assert refused.value.holder == log.files.holder
        owner.send(Event(body=b"c")).result(SOON_S)
        _boot_of_another_machine(tmp_path / "log.db", idle=True)
        other.send(Event(body=b"d")).result(SOON_S)
    assert bodies(log) == ["a", "c", "d"]


def test_an_owner_on_another_machine_is_replaced_after_the_soft_limit(
    log: Log, another: Callable[[], Log], tmp_path: Path
) -> None:
    with log.producer("orders") as owner, another().producer("orders") as other:
        owner.send(Event(body=b"a")).result(SOON_S)
        with sqlite3.connect(tmp_path / "log.db") as database:
            database.execute("UPDATE fs_holder SET host = 'elsewhere', renewed_s = -1e9")
        database.close()
        other.send(Event(body=b"b")).result(SOON_S)
    assert bodies(log) == ["a", "b"]


def test_a_segment_that_a_crash_left_without_bytes_is_used_by_the_next_owner(log: Log) -> None:
    path = segment_path("orders", 0, 0)
    log.files.create(path).close()
    with log.producer("orders") as producer:
        producer.send(Event(body=b"a")).result(SOON_S)
    assert bodies(log) == ["a"]
    assert [each.path for each in segments(log.files, "orders", 0)] == [path]


def test_a_silent_owner_is_waited_for_once_also_after_it_has_begun_another_segment(
    log: Log, another: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create("small", partitions=1, segment_bytes=4096)
    second = another()
    waits: list[str] = []

    def silent(_: OwnerClient, request: OwnerRequest, *, to: str, deadline_s: float) -> None:
        waits.append(to)
        raise OwnerSilent(f"the owner at {to} gave no sign")

    with log.producer("small") as owner, second.producer("small") as other:
        owner.send(Event(body=b"0")).result(SOON_S)
        other.send(Event(body=b"1")).result(SOON_S)  # from now on it knows the owner
        while len(segments(log.files, "small", 0)) < 3:
            owner.send(Event(body=bytes(2000))).result(SOON_S)
        with monkeypatch.context() as patch:
            patch.setattr(OwnerClient, "send", silent)
            other.send(Event(body=b"2")).result(SOON_S)
    assert len(waits) == 1
    assert (second.counts().taken, second.counts().recovered) == (1, 1)


def test_a_segment_without_bytes_after_others_goes_on_from_them(
    log: Log, another: Callable[[], Log]
) -> None:
    mine = ProducerOptions(producer_id=b"0123456789abcdef")
    first = another()
    with first.producer("orders", mine) as producer:
        producer.send([Event(body=b"a"), Event(body=b"b")]).result(SOON_S)
    first.close()
    log.files.create(segment_path("orders", 0, 2)).close()
    with log.producer("orders", mine) as producer:
        events = [Event(body=body) for body in (b"a", b"b", b"c")]
        assert producer.send(events).result(SOON_S) == receipts((0, 2, True), (2, 1, False))
    assert bodies(log) == ["a", "b", "c"]
    log.close()
    with Log.open(first.files.url) as again:
        assert not again.verify("orders")


def test_a_last_segment_without_a_whole_event_is_removed(log: Log) -> None:
    header = SegmentHeader(partition=0, base_sequence=0, base_offset=0, created_us=1, epoch=1)
    with log.files.create(segment_path("orders", 0, 0)) as writer:
        writer.write(encode_segment_header(header))
    with log.producer("orders") as producer:
        producer.send(Event(body=b"a")).result(SOON_S)
    assert bodies(log) == ["a"]


def test_a_segment_that_comes_too_late_is_given_up(log: Log) -> None:
    log.files.create(segment_path("orders", 0, 10)).close()
    with pytest.raises(OwnerMoved, match="gone on"):
        create_segment(
            log.files, StreamPartition(stream="orders", number=0), StreamSettings(), base=5
        )
    assert [each.path[-8:-4] for each in segments(log.files, "orders", 0)] == ["0010"]


def test_nothing_is_left_behind_when_a_log_is_closed(
    log: Log, another: Callable[[], Log], tmp_path: Path
) -> None:
    threads = set(threading.enumerate())
    second = another()
    with log.producer("orders") as owner, second.producer("orders") as other:
        owner.send(Event(body=b"a")).result(SOON_S)
        other.send(Event(body=b"b")).result(SOON_S)
    address = log.files.status(segment_path("orders", 0, 0)).address.removeprefix("unix:")
    assert Path(address).is_socket()
    second.close()
    log.close()
    assert not Path(address).exists()
    left = set(threading.enumerate()) - threads
    assert not [thread.name for thread in left if thread.name.startswith("leasehold-")]


@pytest.mark.server
def test_the_log_lives_in_postgresql_too(tmp_path: Path) -> None:
    url = fresh_database()
    with (
        Log.open(url, volumes=[tmp_path / "a"]) as log,
        Log.open(url) as second,
    ):
        log.create("orders", partitions=1)
        with log.producer("orders") as owner, second.producer("orders") as other:
            owner.send([Event(body=b"a"), Event(body=b"b")]).result(SOON_S)
            other.send(Event(body=b"c")).result(SOON_S)
            log.close()
            quickly = ProducerOptions(deliver_timeout=timedelta(seconds=SOON_S))
            with second.producer("orders", quickly) as third:
                third.send(Event(body=b"d")).result(SOON_S)
        assert bodies(second) == ["a", "b", "c", "d"]
        assert second.info("orders").parts[0].writer == second.files.holder
        assert second.counts().taken == 1
