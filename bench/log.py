"""The event log beside plain pyarrow, plain writes, and the encoding of azure-eventhub's client."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa
from azure.eventhub import EventData, EventDataBatch
from bench.report import Bar, Job, Part, Row, at_most, cost, main

from leasehold.events import Event, Start
from leasehold.log import Log, ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MIB = 1 << 20
_BODY = 200
_BATCH = 1_000
_STREAM = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    read_batches: int
    append_batches: int
    rounds: int
    sent_batches: int
    seek_mib: int
    seeks: int


_FULL = Sizes(
    read_batches=2_000, append_batches=200, rounds=7, sent_batches=100, seek_mib=1024, seeks=25
)
_SMALL = Sizes(read_batches=5, append_batches=2, rounds=1, sent_batches=2, seek_mib=2, seeks=2)


@contextmanager
def log() -> Iterator[tuple[Log, Path]]:
    """One with a stream of one partition on one volume, thrown away at the end."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        opened = stack.enter_context(
            Log.open(f"sqlite:///{root}/leases.db", volumes=[root / "volume"])
        )
        opened.create(_STREAM, partitions=1)
        yield opened, root


def table(rows: int, body_bytes: int = _BODY, *, first: int = 0) -> pa.Table:
    rng = random.Random(first)
    bodies = [rng.randbytes(body_bytes) for _ in range(rows)]
    keys = [f"device-{number % 97}" for number in range(first, first + rows)]
    return pa.table({"key": keys, "body": bodies})


# ------------------------------------------------------------------ reading


def reading(sizes: Sizes) -> Sequence[Row]:
    """Every batch once, in turns, so that whatever else the machine does hits both alike."""
    with log() as (opened, root):
        with opened.producer(_STREAM) as producer:
            sent = table(_BATCH)
            for _ in range(sizes.read_batches):
                producer.send(sent, partition=0)
        path = root / "plain.arrow"
        _copy_as_ipc_file(opened, path)
        ways: dict[str, Callable[[], int]] = {
            "ours": lambda: _read_ours(opened, verify=True),
            "unverified": lambda: _read_ours(opened, verify=False),
            "file": lambda: _read_ipc(pa.OSFile(str(path))),
            "map": lambda: _read_ipc(pa.memory_map(str(path))),
        }
        size = path.stat().st_size
        rates: dict[str, list[float]] = {way: [] for way in ways}
        by_cpu: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(sizes.rounds):
            for way, read in ways.items():
                rate, cpu_rate = _gb_per_s(read, size)
                rates[way].append(rate)
                by_cpu[way].append(cpu_rate)
    return [
        _rate_row(
            "read as Arrow, checksums compared: GB/s; peer: pyarrow, IPC file",
            rates["ours"],
            rates["file"],
            Bar(words=">= 0.8 x", least=0.8),
        ),
        _rate_row(
            "the same: GB per CPU s, that of both threads; peer: pyarrow, IPC file",
            by_cpu["ours"],
            by_cpu["file"],
        ),
        _rate_row(
            "without comparing them: GB/s; peer: pyarrow, IPC file",
            rates["unverified"],
            rates["file"],
        ),
        _rate_row(
            "the same; peer: pyarrow, memory map, which reads nothing yet",
            rates["unverified"],
            rates["map"],
        ),
    ]


def _copy_as_ipc_file(opened: Log, path: Path) -> None:
    with opened.reader(_STREAM, 0) as reader:
        first = reader.read()
        assert first is not None
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, first.arrow.schema) as file:
            file.write_batch(first.arrow)
            for batch in reader.batches():
                file.write_batch(batch.arrow)


def _read_ours(opened: Log, *, verify: bool) -> int:
    with opened.reader(_STREAM, 0, verify=verify) as reader:
        return sum(batch.arrow.num_rows for batch in reader.batches())


def _read_ipc(source: pa.NativeFile) -> int:
    with source, pa.ipc.open_file(source) as file:
        return sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))


def _gb_per_s(read: Callable[[], int], total_bytes: int) -> tuple[float, float]:
    """For each second that passed, and for each second of a processor, of all threads."""
    began, began_cpu = time.perf_counter(), time.process_time()
    assert read()
    passed_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return total_bytes / passed_s / 1e9, total_bytes / cpu_s / 1e9


# ---------------------------------------------------------------- appending


def appending(sizes: Sizes) -> Sequence[Row]:
    """The same number of bytes: events in, one sync for each group; and write + fsync by hand."""
    with log() as (opened, root):
        sent = table(_BATCH)
        with opened.producer(_STREAM) as producer:
            producer.send(sent, partition=0).result()
            before, began_at = _stored_bytes(opened), 0.0
            rates: list[tuple[float, float]] = []
            for _ in range(sizes.rounds):
                began_at = time.perf_counter()
                for _ in range(sizes.append_batches):
                    producer.send(sent, partition=0)
                producer.flush()
                ours_s = time.perf_counter() - began_at
                after = _stored_bytes(opened)
                frame = os.urandom((after - before) // sizes.append_batches)
                plain_s = _written_plainly(root / "plain", frame, sizes.append_batches)
                rates.append(((after - before) / ours_s / 1e6, (after - before) / plain_s / 1e6))
                before = after
        commits = opened.counts().commits
    ours, peer = [one for one, _ in rates], [other for _, other in rates]
    total = sizes.rounds * sizes.append_batches
    return [
        _rate_row(
            f"append of {_BATCH:,}-event batches: MB/s; peer: os.write + fsync of each batch",
            ours,
            peer,
            Bar(words=">= 0.6 x", least=0.6),
        ),
        Row(what="batches for each sync", ours=round(total / max(commits - 1, 1), 1), peer=1),
    ]


def _stored_bytes(opened: Log) -> int:
    return sum(each.bytes for each in opened.info(_STREAM).parts)


def _written_plainly(path: Path, frame: bytes, count: int) -> float:
    began = time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        for _ in range(count):
            os.write(fd, frame)
            os.fsync(fd)
    finally:
        os.close(fd)
    return time.perf_counter() - began


# -------------------------------------------------------------- CPU of send


def sending(sizes: Sizes) -> Sequence[Row]:
    """Processor time of the whole process, storing included, beside encoding alone."""
    rng = random.Random(7)
    bodies = [rng.randbytes(_BODY) for _ in range(_BATCH)]
    arrow = pa.table({"body": bodies})
    with log() as (opened, _):
        options = ProducerOptions(max_pending_bytes=1 << 30)
        with opened.producer(_STREAM, options) as producer:

            def send(make: Callable[[], object]) -> None:
                for _ in range(sizes.sent_batches):
                    producer.send(make(), partition=0)
                producer.flush()

            events = partial(send, lambda: [Event(body=body) for body in bodies])
            tables = partial(send, lambda: arrow)
            peers = partial(_encode_as_azure, bodies, sizes.sent_batches)
            events()
            times = [
                (_cpu_us(events, sizes), _cpu_us(tables, sizes), _cpu_us(peers, sizes))
                for _ in range(sizes.rounds)
            ]
    ours, ours_table, peer = (median(column) for column in zip(*times, strict=True))
    tenth = Bar(words="<= 1/10", least=10.0)
    ratio, table_ratio = peer / ours, peer / ours_table
    return [
        Row(
            what="send of 200-byte events: CPU us per event; peer: azure-eventhub's "
            "EventDataBatch.add",
            ours=float(f"{ours:.3g}"),
            peer=float(f"{peer:.3g}"),
            ratio=float(f"{ratio:.3g}"),
            bar=tenth.words,
            met=tenth.met(ratio),
        ),
        Row(
            what="the same from an Arrow table",
            ours=float(f"{ours_table:.3g}"),
            peer=float(f"{peer:.3g}"),
            ratio=float(f"{table_ratio:.3g}"),
        ),
    ]


def _encode_as_azure(bodies: Sequence[bytes], batches: int) -> None:
    for _ in range(max(1, batches // 10)):
        batch = EventDataBatch(max_size_in_bytes=_MIB)
        for body in bodies:
            batch.add(EventData(body))


def _cpu_us(work: Callable[[], None], sizes: Sizes) -> float:
    began = time.process_time()
    work()
    spent = time.process_time() - began
    batches = sizes.sent_batches
    if getattr(work, "func", None) is _encode_as_azure:
        batches = max(1, batches // 10)
    return spent / batches / _BATCH * 1e6


# ------------------------------------------------------------------ seeking


def seeking(sizes: Sizes) -> Sequence[Row]:
    """From opening a reader to its first event, at random places of a big partition."""
    rows, body = 100, 10_000
    batches = max(2, sizes.seek_mib * _MIB // (rows * body))
    with log() as (opened, _):
        with opened.producer(_STREAM) as producer:
            for number in range(batches):
                sent = table(rows, body, first=number * rows)
                if number == batches // 2:
                    keys = pa.array(["needle", *sent["key"].to_pylist()[1:]])
                    sent = sent.set_column(0, "key", keys)
                producer.send(sent, partition=0)
        total, rng = rows * batches, random.Random(3)
        moments = _moments(opened, total, rng, sizes.seeks)
        by_number = [
            _ms(partial(_first_at, opened, Start.sequence(rng.randrange(total))))
            for _ in range(sizes.seeks)
        ]
        by_time = [_ms(partial(_first_at, opened, moment)) for moment in moments]
        by_key = [_ms(partial(_find, opened, "needle")) for _ in range(max(1, sizes.seeks // 5))]
    size = f"{batches * rows * body / _MIB / 1024:.2g} GB"
    few = at_most(50.0)
    return [
        cost(f"seek by sequence number in {size}: ms", median(by_number), bar=few),
        cost(f"seek by time in {size}: ms", median(by_time), bar=few),
        cost(f"find a key that occurs once in {size}: ms", median(by_key), bar=few),
    ]


def _moments(opened: Log, total: int, rng: random.Random, count: int) -> list[Start]:
    found = []
    for _ in range(count):
        with opened.reader(_STREAM, 0, start=Start.sequence(rng.randrange(total))) as reader:
            batch = reader.read(max_events=1)
            assert batch is not None
            moment = batch.arrow.column("enqueued_at")[0].as_py()
            found.append(Start.time(moment - timedelta(microseconds=1)))
    return found


def _first_at(opened: Log, start: Start) -> None:
    with opened.reader(_STREAM, 0, start=start) as reader:
        assert reader.read(max_events=1) is not None


def _find(opened: Log, key: str) -> None:
    with opened.reader(_STREAM, 0) as reader:
        assert sum(len(batch) for batch in reader.find(key)) == 1


def _ms(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


# -------------------------------------------------------------------- parts


def _rate_row(what: str, ours: list[float], peer: list[float], bar: Bar | None = None) -> Row:
    """More is better; the ratio is the median of the ratios of neighbouring rounds."""
    ratio = median(one / other for one, other in zip(ours, peer, strict=True))
    return Row(
        what=what,
        ours=float(f"{median(ours):.3g}"),
        peer=float(f"{median(peer):.3g}"),
        ratio=float(f"{ratio:.3g}"),
        bar=bar.words if bar else None,
        met=bar.met(ratio) if bar else True,
    )


def _jobs(small: bool) -> Sequence[Job]:  # noqa: FBT001
    sizes = _SMALL if small else _FULL
    return [
        Job(what="reading", run=partial(reading, sizes)),
        Job(what="appending", run=partial(appending, sizes)),
        Job(what="CPU of send", run=partial(sending, sizes)),
        Job(what="seeking", run=partial(seeking, sizes)),
    ]


PART = Part(
    name="log",
    about="The embedded log on SQLite and one volume, on this machine's disk.",
    jobs=_jobs,
)

if __name__ == "__main__":
    sys.exit(main([PART]))
