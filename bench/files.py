"""Files: what group commit is worth, what the monitor and a renewal cost, what recovery reads."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.report import Bar, Job, Part, Row, at_most, cost, main

from leasehold.clock import SystemClock, new_suffix
from leasehold.files import FileOptions, Namespace
from leasehold.files.disk import SystemDisk
from leasehold.files.journal import Journal
from leasehold.files.model import FileHolder
from leasehold.files.recovery import RecoveryContext, RecoveryProgress
from leasehold.files.volumes import Volumes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from leasehold.files.model import OpenedFile

_MIB = 1 << 20
_WRITERS = 8
_FIVE_TIMES = Bar(words=">= 5 x", least=5.0)
_SAME = Bar(words="within 20 %", most=1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    small_files: int
    rounds: int
    open_files: int
    holders: int
    block_mib: int


_FULL = Sizes(small_files=40, rounds=7, open_files=100_000, holders=1_000, block_mib=256)
_SMALL = Sizes(small_files=2, rounds=1, open_files=200, holders=20, block_mib=2)


@contextmanager
def namespace(*, volumes: int, group_commit: bool = True) -> Iterator[Namespace]:
    """One with a database and volumes of its own, thrown away at the end."""
    options, clock = FileOptions(), SystemClock()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        helpers = stack.enter_context(ThreadPoolExecutor(16))
        disk = SystemDisk(helpers)
        journal = Journal.open(
            f"sqlite:///{root}/leases.db", limits=options.limits, group_commit=group_commit
        )
        stack.callback(journal.close)
        found = Volumes.opened(
            journal,
            [root / f"volume{n}" for n in range(volumes)],
            disk=disk,
            clock=clock,
            new_id=new_suffix,
        )
        around = RecoveryContext(journal=journal, volumes=found, disk=disk, boot_id=bytes(16))
        yield Namespace(around, holder("bench"), options=options, clock=clock)


def holder(name: str) -> FileHolder:
    return FileHolder(id=name, token=name, host="bench", pid=0)


# ------------------------------------------------------------- small files


def small_files(sizes: Sizes) -> Sequence[Row]:
    """The same work with shared commits, and with each operation made durable by itself.

    How much sharing is worth hangs on what a sync costs beside the work for a file: both are shown.
    A run soon after another is slower on both sides: before ext4 makes a file it looks at each one
    that was removed near it in the last minutes.
    """
    with namespace(volumes=1) as shared, namespace(volumes=1, group_commit=False) as alone:
        lock = threading.Lock()
        turns = [
            (
                _turn(shared, sizes.small_files, f"/{turn}"),
                _turn(alone, sizes.small_files, f"/{turn}", each_alone=lock),
                _sync_ms(Path(shared.volumes[0].root)),
            )
            for turn in range(sizes.rounds)
        ]
    ours, peer = median(one.per_s for one, *_ in turns), median(two.per_s for _, two, _ in turns)
    ratio = median(one.per_s / two.per_s for one, two, _ in turns)
    return [
        Row(
            what=f"create + write + close of 1 kB files/s, {_WRITERS} writers; peer: each "
            "operation synced by itself",
            ours=round(ours),
            peer=round(peer),
            ratio=round(ratio, 2),
            bar=_FIVE_TIMES.words,
            met=_FIVE_TIMES.met(ratio),
        ),
        cost(
            "the same: CPU ms for each file",
            median(one.cpu_ms for one, *_ in turns),
            median(two.cpu_ms for _, two, _ in turns),
        ),
        cost("one small write and its sync, alone: ms", median(ms for *_, ms in turns)),
        *_commits(sizes),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    per_s: float
    cpu_ms: float


def _turn(
    files: Namespace, count: int, root: str, *, each_alone: threading.Lock | None = None
) -> Turn:
    """``each_alone``: every operation is synced before the next one of anybody begins."""
    data = bytes(1_000)
    turn: AbstractContextManager[object] = each_alone or nullcontext()

    def work(writer: int) -> None:
        for number in range(count):
            with turn:
                file = files.create(f"{root}/{writer}/{number}")
            with turn:
                file.write(data)
                if each_alone:
                    file.sync()
            with turn:
                file.close()

    began, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(_WRITERS) as threads:
        list(threads.map(work, range(_WRITERS)))
    took_s, used_s = time.perf_counter() - began, time.process_time() - used
    return Turn(per_s=count * _WRITERS / took_s, cpu_ms=used_s * 1e3 / (count * _WRITERS))


def _sync_ms(folder: Path, times: int = 50) -> float:
    """What the disk alone asks for one small operation."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(times):
            file.write(bytes(1_000))
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) * 1e3 / times


def _commits(sizes: Sizes) -> Sequence[Row]:
    """Journal steps for each commit: what group commit saves, whatever a sync costs here."""
    commits: list[int] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        steps: list[str] = []
        journal = Journal.open(
            f"sqlite:///{folder}/leases.db",
            limits=FileOptions().limits,
            hook=lambda step, moment: steps.append(step) if moment == "after" else None,
        )
        database = journal._database  # noqa: SLF001
        write = database.write

        def counted(work: Callable[..., object]) -> object:
            commits.append(1)
            return write(work)

        database.write = counted  # type: ignore[method-assign, assignment]
        _opened(journal, sizes.small_files * _WRITERS, threads=_WRITERS)
        journal.close()
    return [
        Row(
            what=f"journal steps per commit, {_WRITERS} threads",
            ours=round(len(steps) / len(commits), 2),
            peer=1,
        )
    ]


def _opened(journal: Journal, count: int, *, threads: int, holders: int = 1) -> list[OpenedFile]:
    journal.register_volume("v", "/nowhere")

    def create(number: int) -> OpenedFile:
        return journal.create(
            f"/open/{number % holders}/{number}",
            holder(f"h{number % holders}"),
            replication=1,
            block_bytes=_MIB,
            overwrite=False,
            volumes=("v",),
            request=str(number),
        )

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(create, range(count)))


# ------------------------------------------------- monitor and renewal cost


def many_open_files(sizes: Sizes) -> Sequence[Row]:
    """A pass with nothing expired, and a renewal of a holder with one file and with many."""
    with namespace(volumes=1) as files:
        journal = files._journal  # noqa: SLF001
        _opened(journal, sizes.open_files, threads=128, holders=sizes.holders)
        journal.create(
            "/one",
            holder("poor"),
            replication=1,
            block_bytes=_MIB,
            overwrite=False,
            volumes=("v",),
            request="one",
        )
        pass_ms = _cpu_ms(files.monitor.run_once, 20)
        pairs = [
            (
                _cpu_ms(lambda: journal.renew(holder("h0")), 10),
                _cpu_ms(lambda: journal.renew(holder("poor")), 10),
            )
            for _ in range(sizes.rounds * 3)
        ]
        open_files = len(journal.list_open(limit=1))
    assert open_files
    rich, poor = median(one for one, _ in pairs), median(other for _, other in pairs)
    ratio = median(one / other for one, other in pairs)
    each = sizes.open_files // sizes.holders
    return [
        cost(
            f"monitor pass, {sizes.open_files:,} open files of {sizes.holders:,} holders, none "
            "expired: CPU ms",
            pass_ms,
            bar=at_most(5.0),
        ),
        Row(
            what=f"renewal of a holder with {each} files: CPU ms; peer: with 1 file",
            ours=round(rich, 3),
            peer=round(poor, 3),
            ratio=round(ratio, 2),
            bar=_SAME.words,
            met=_SAME.met(ratio),
        ),
    ]


def _cpu_ms(call: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times * 1e3


# ----------------------------------------------------------------- recovery


def recovery(sizes: Sizes) -> Sequence[Row]:
    """A big open block on three volumes, its writer gone: how much of it has to be read."""
    told: list[RecoveryProgress] = []
    with namespace(volumes=3) as files:
        writer = files.create("/big", block_bytes=2 * sizes.block_mib * _MIB)
        piece = bytes(range(256)) * 4096
        for _ in range(sizes.block_mib):
            writer.write(piece)
        writer.flush()
        began = time.perf_counter()
        files.recover("/big", timeout=timedelta(minutes=1), progress=told.append)
        ours_s = time.perf_counter() - began
        began = time.perf_counter()
        assert not files.verify("/big")
        whole_s = time.perf_counter() - began
    read = max(each.bytes_read for each in told) / _MIB
    whole = 3 * sizes.block_mib
    return [
        cost(
            f"recovery of a {sizes.block_mib} MB open block on 3 volumes: MB read; peer: all of it",
            round(read, 1),
            whole,
            Bar(words="its tail", most=max(3 * 17.0, 0.0)),
        ),
        cost("the same: seconds; peer: comparing all of it", ours_s, whole_s),
    ]


def _jobs(small: bool) -> Sequence[Job]:  # noqa: FBT001
    sizes = _SMALL if small else _FULL
    return [
        Job(what="small files", run=partial(small_files, sizes)),
        Job(what="many open files", run=partial(many_open_files, sizes)),
        Job(what="recovery of a big block", run=partial(recovery, sizes)),
    ]


PART = Part(
    name="files",
    about="Single-writer files on SQLite, on this machine's disk.",
    jobs=_jobs,
)

if __name__ == "__main__":
    sys.exit(main([PART]))
