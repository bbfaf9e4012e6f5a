"""Fault runs of files, one per seed: real writers, recovery, monitor and readers on bad disks.

One machine has one to three volumes, in memory, and a journal. Several processes write the same few
files: they open, append, overwrite, take over after the soft limit, read, verify and recover. Some
are paused for longer than the hard limit, at any step, and resume as former writers. A monitor
recovers what is silent. All of it is the real code; what is simulated is the disk below it, the
clock, and which process runs when.

Phase 1: faults. Processes are killed and paused; the power is cut; volumes lie about syncs, fail
syncs and forget what they were about, tear writes, fail calls, are full, vanish, and come back as
they were, as they were long ago, or empty; bits flip; a process has no descriptors; the journal
does not answer, or its answer is lost.

Phase 2: the faults stop. An operator recovers every file, and reads and verifies it. What was
acknowledged must be there, unless every replica of a block was destroyed. That must be reported.

Phase 3, in some runs: an older copy of the database is put in place under the newer volumes, and
used; then the newer one is put back. All files must be as before.

``file_checks`` has the invariants. The same seed gives the same run, step by step.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import random
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from leasehold.clock import host_name
from leasehold.errors import LeaseholdError, StoreError, UnknownFile
from leasehold.files.journal import Journal
from leasehold.files.model import FileHolder, FileOptions
from leasehold.files.monitor import Monitor
from leasehold.files.namespace import Namespace
from leasehold.files.open_files import BoundedDisk, OpenFiles
from leasehold.files.recovery import RecoveryContext
from leasehold.files.volumes import Volume, Volumes
from leasehold.testing.sim.bad_volumes import SimDisk, SimVolume
from leasehold.testing.sim.blocking_process import (
    ProcessDatabase,
    SimClock,
    SimDatabase,
    SimProcess,
    StepwiseCommit,
    Turns,
)
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.file_checks import FileChecks, bytes_of
from leasehold.testing.sim.loop import run_simulated, simulated_sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.files.writer import FileWriter
    from leasehold.testing.sim.file_checks import KnownFile

SOFT_S, HARD_S, ATTEMPT_S = 10.0, 30.0, 15.0
PATHS = ("/a", "/dir/b", "/dir/c")
AT_ONCE = timedelta(0)
_SIZES = (1, 100, 700, 1500, 4096, 9000)
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRun:
    """The result of a seed: equal in every run. ``story`` digests every step.

    ``acknowledged``: bytes; ``losses``: how often a file became shorter than it was acknowledged,
    which only happens when all replicas were destroyed; ``refused``: steps of former writers that
    the journal refused; ``power_cuts``: of the one machine.
    """

    seed: int
    processes: int
    volumes: int
    simulated_s: float
    faults: int
    acknowledged: int
    recoveries: int
    losses: int
    refused: int
    power_cuts: int
    story: str


def run_files(seed: int, *, trace: Callable[[str], None] | None = None) -> FilesRun:
    """Run one seed; ``trace`` is called with each step, as text.

    Raises ``InvariantBroken`` with the seed, which repeats the run exactly.
    """
    try:
        with _logger_disabled():
            return run_simulated(_run_phases(seed, trace))
    except InvariantBroken as broken:
        raise InvariantBroken(f"seed {seed}: {broken}") from broken


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSetting:
    """The setting of a run."""

    seed: int
    volumes: int
    lying: frozenset[int]
    writers: int
    faults: int
    steps_between: int
    replication: int | None
    answer_lost: float
    open_files: int


def draw_setting(seed: int) -> FilesSetting:
    """Draw the setting of a run."""
    rng = random.Random(f"{seed}/files")
    volumes = rng.choice((1, 2, 2, 3))
    return FilesSetting(
        seed=seed,
        volumes=volumes,
        lying=frozenset(each for each in range(volumes) if rng.random() < 0.15),
        writers=rng.randint(2, 3),
        faults=rng.randint(3, 8),
        steps_between=rng.choice((20, 60, 200)),
        replication=rng.choice((None, None, volumes, 1)),
        answer_lost=rng.choice((0.0, 0.0, 0.02)),
        open_files=rng.choice((4, 16, 64)),
    )


class SimNamespace(Namespace):
    """The namespace of a simulated process, which waits in simulated time."""

    process: SimProcess

    def _wait(self, seconds: float) -> None:
        self.process.sleep(seconds)


@dataclass(slots=True, eq=False)
class Pen:
    """A file that a process has open for writing."""

    writer: FileWriter
    file_id: int
    epoch: int
    start: int
    handed: int


class FilesWorld:
    """A machine with volumes, a journal, and processes that come and go."""

    def __init__(self, setting: FilesSetting, trace: Callable[[str], None] | None = None) -> None:
        self.setting = setting
        self.rng = random.Random(f"{setting.seed}/world")
        self.loop = asyncio.get_running_loop()
        self.clock = SimClock(self.loop)
        self.turns = Turns(self.loop)
        self.database = SimDatabase(self.clock)
        self.checks = FileChecks(self.database, self.trace)
        self.volumes = {
            f"v{number}": SimVolume(
                f"v{number}", on_damage=self.checks.on_damage, lies=number in setting.lying
            )
            for number in range(setting.volumes)
        }
        self.processes: list[FilesProcess] = []
        self.boot_id = self.rng.randbytes(16)
        self.journal_is_up = True
        self.has_faults = self.is_over = False
        self.faults = self.power_cuts = self.refused = 0
        self.copies: list[tuple[str, dict[str, dict[str, bytes]]]] = []
        self._trace = trace
        self._digest = hashlib.sha256()

    def trace(self, text: str) -> None:
        """Record a step of the story."""
        line = f"{self.loop.time():9.3f} {text}"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def story(self) -> str:
        """Return all steps, in a few characters."""
        return self._digest.hexdigest()[:16]

    @property
    def running(self) -> list[FilesProcess]:
        """The processes that have not ended."""
        return [each for each in self.processes if not each.process.ended]

    def start(self, name: str, main: Callable[[FilesProcess], None]) -> FilesProcess:
        """Start a process."""
        made = FilesProcess(self, f"{name}-{len(self.processes)}", main)
        self.processes.append(made)
        self.trace(f"{made.process.name} starts")
        made.process.start(made.run)
        return made

    def interrupt(self, process: SimProcess, what: str) -> None:
        """Let others run at a step of a process; pause it for long, or end it."""
        chance = process.rng.random()
        if not self.has_faults:
            process.sleep(0.001)
        elif chance < 0.01:
            self.trace(f"{process.name} is killed at {what!r}")
            process.killed = True
            process.check_alive()
        elif chance < 0.05:
            pause_s = process.rng.uniform(0.0, 2 * HARD_S)
            self.trace(f"{process.name} is paused at {what!r} for {pause_s:.1f} s")
            process.sleep(pause_s)
        else:
            process.sleep(process.rng.choice((0.0, 0.01, 0.3)))

    def committed(self, process: SimProcess, step: str) -> None:
        """Look at the journal after a step."""
        self.checks.committed(process, step)

    def restart_machine(self, *, with_power_cut: bool) -> None:
        """End all processes; with a power cut the volumes keep only what is durable, or more."""
        for each in self.running:
            each.process.kill()
        if with_power_cut:
            self.power_cuts += 1
            self.boot_id = self.rng.randbytes(16)
            for volume in self.volumes.values():
                volume.cut(self.rng)
            self.database.restart()
            self.checks.restarted()

    async def wait_for(self, process: FilesProcess) -> None:
        """Wait until a process has ended by itself."""
        for _ in range(100_000):
            if process.process.ended:
                break
            await simulated_sleep(1.0)
        if process.process.error is not None:
            raise process.process.error

    def end(self) -> None:
        """End all threads, and give everything back."""
        self.has_faults = False
        for each in self.processes:
            if not each.process.ended:
                each.process.kill()
            each.process.join()
        self.database.end()

    def check(self) -> None:
        """Raise what the checks have found, or an error that no process may raise."""
        for each in self.processes:
            if each.process.error is not None:
                raise InvariantBroken(
                    f"{each.process.name}: {each.process.error!r} reached the program"
                ) from each.process.error
        if self.checks.broken:
            raise InvariantBroken(self.checks.broken[0])


class FilesProcess:
    """One process: its disk, its journal, its namespace, and what it does with them."""

    def __init__(self, world: FilesWorld, name: str, main: Callable[[FilesProcess], None]) -> None:
        self.world = world
        self.rng = random.Random(f"{world.setting.seed}/{name}")
        self.process = SimProcess(
            name,
            world.turns,
            random.Random(f"{world.setting.seed}/{name}/steps"),
            steps_between=world.setting.steps_between,
            interrupt=world.interrupt,
        )
        self.disk = SimDisk(world.volumes, self.process, random.Random(f"{name}/disk"))
        self.pens: list[Pen] = []
        self._main = main
        self.options = FileOptions(
            soft_limit=timedelta(seconds=SOFT_S),
            hard_limit=timedelta(seconds=HARD_S),
            recovery_timeout=timedelta(seconds=ATTEMPT_S),
            replication=world.setting.replication,
            block_bytes=_BLOCK_BYTES,
        )

    def run(self) -> None:
        """Open the namespace, and do what this process is for."""
        world, process = self.world, self.process
        self.journal = Journal(
            ProcessDatabase(world.database, process, lambda: world.journal_is_up),
            StepwiseCommit(
                ProcessDatabase(world.database, process, lambda: world.journal_is_up),
                process,
                limits=self.options.limits,
                committed=world.committed,
                loses_answer=lambda: (
                    world.has_faults and self.rng.random() < world.setting.answer_lost
                ),
            ),
            self.options.limits,
        )
        disk = BoundedDisk(self.disk, open_files=OpenFiles(world.setting.open_files))
        volumes = None
        while volumes is None:
            try:
                volumes = Volumes.opened(
                    self.journal, (), disk=disk, clock=world.clock, new_id=lambda: process.name
                )
            except LeaseholdError:
                process.sleep(1.0)
        self.context = RecoveryContext(
            journal=self.journal, volumes=volumes, disk=disk, boot_id=world.boot_id
        )
        self.holder = FileHolder(id=process.name, token=process.name, host=host_name(), pid=1)
        self.files = SimNamespace(
            self.context,
            self.holder,
            options=self.options,
            clock=world.clock,
            rng=self.rng,
            has_threads=False,
        )
        self.files.process = process
        self._main(self)

    # --------------------------------------------------------------- what processes do

    def write_files(self) -> None:
        """Write, read and recover files, until the run is over."""
        while not self.world.is_over:
            self.process.sleep(self.rng.uniform(0.0, 2.0))
            self.files.renewer.run_once()
            act = self.rng.choice(
                (
                    *(self._write, self._write, self._write, self._write, self._open, self._open),
                    *(self._close, self._read, self._read, self._other),
                )
            )
            self._tried(act.__name__.removeprefix("_"), act)
        for pen in list(self.pens):
            self._tried("close", partial(self._close_one, pen))

    def monitor_files(self) -> None:
        """Recover what is silent, and remove what is not needed."""
        monitor = Monitor(
            self.context,
            self.holder,
            clock=self.world.clock,
            rng=self.rng,
            interval_s=2.0,
            budget_s=5.0,
        )
        while not self.world.is_over:
            self.process.sleep(self.rng.uniform(1.0, 4.0))
            self._tried("look", monitor.run_once)

    def _tried(self, what: str, act: Callable[[], object]) -> bool:
        """Do something that may fail, as ``LeaseholdError``."""
        try:
            done = act()
        except LeaseholdError as error:
            self.world.trace(f"{self.process.name} {what}: {type(error).__name__}")
            return False
        self.world.trace(f"{self.process.name} {what}: {done}")
        return True

    def _open(self) -> str:
        if len(self.pens) > 2:
            return "has enough"
        path = self.rng.choice(PATHS)
        kind = self.rng.choice(("create", "append", "append", "append", "overwrite"))
        if kind == "overwrite" and self.rng.random() < 0.7:
            kind = "create"
        if kind == "append":
            writer = self.files.append(path)
        else:
            writer = self.files.create(path, overwrite=kind == "overwrite")
        start = writer.length
        file_id = writer._ticket.file_id  # noqa: SLF001 - which file it is, not only its path
        self.pens.append(Pen(writer, file_id, writer.epoch, start, start))
        return f"{path} from {start} under epoch {writer.epoch}"

    def _write(self) -> str:
        if not self.pens:
            return self._open()
        pen = self.rng.choice(self.pens)
        size = self.rng.choice(_SIZES)
        checks, end = self.world.checks, pen.handed + size
        file = checks.files.get(pen.file_id)
        term = file.term(pen.epoch) if file is not None else None
        data = bytes_of(pen.epoch, pen.start, end)[pen.handed - pen.start :]
        if term is not None:
            term.attempted = max(term.attempted, end)
            # A block that becomes full is sealed, and so acknowledged.
            full = pen.start + (end - pen.start) // _BLOCK_BYTES * _BLOCK_BYTES
            term.offered = max(term.offered, full)
        try:
            pen.writer.write(data)
            pen.handed = end
            if term is not None:
                term.handed = end
            kind = self.rng.choice(("write", "flush", "flush", "sync"))
            if kind == "write":
                return f"writes {size} to {pen.writer.path}"
            if term is not None:
                term.offered = max(term.offered, end)
            length = pen.writer.sync() if kind == "sync" else pen.writer.flush()
        except StoreError:
            raise
        except LeaseholdError:
            if self.rng.random() < 0.7:
                self._close_one(pen)
            raise
        checks.acknowledged(pen.file_id, pen.epoch, length, durable=kind == "sync")
        return f"{kind} {pen.writer.path} at {length}"

    def _close(self) -> str:
        if not self.pens:
            return "nothing is open"
        return self._close_one(self.rng.choice(self.pens))

    def _close_one(self, pen: Pen) -> str:
        file = self.world.checks.files.get(pen.file_id)
        term = file.term(pen.epoch) if file is not None else None
        if term is not None:
            term.offered = max(term.offered, pen.handed)
        self._recovers(pen.writer.path)
        try:
            status = pen.writer.close()
        except StoreError:
            raise
        except LeaseholdError:
            if pen in self.pens:
                self.pens.remove(pen)
            raise
        if pen in self.pens:
            self.pens.remove(pen)
        return f"{pen.writer.path} at {None if status is None else status.length}"

    def _recovers(self, path: str) -> None:
        """Remember since when the volumes may fail a recovery of this process."""
        self.world.checks.is_recovering[self.process.name] = {path: self.process.steps}

    def _read(self) -> str:
        path = self.rng.choice(PATHS)
        return self.read(path)

    def read(self, path: str) -> str:
        """Read a file from its beginning to its end, and compare."""
        checks, since = self.world.checks, self.process.steps
        known = next((each for each in checks.files.values() if each.path == path), None)
        least = known.flushed if known is not None else 0
        try:
            reader = self.files.read(path)
            file_id = reader.status.id
            if known is None or file_id != known.id:
                least = 0
            data = reader.read()
        except (StoreError, UnknownFile):
            raise
        except LeaseholdError as error:
            if known is not None and not self.disk.exhausted:
                checks.unreadable(self.process, known.id, error, since=since)
            raise
        checks.read(self.process, file_id, data, least=least, since=since)
        return f"reads {len(data)} of {path}"

    def _other(self) -> str:
        path = self.rng.choice(PATHS)
        kind = self.rng.choice(("verify", "recover", "delete", "rename"))
        if kind == "verify":
            return f"verifies {path}: {len(self.files.verify(path))}"
        if kind == "recover":
            self._recovers(path)
            return f"recovers {path}: {self.files.recover(path, timeout=AT_ONCE).length}"
        if kind == "delete" and self.rng.random() < 0.3:
            return f"deletes {path}: {self.files.delete(path)}"
        other = self.rng.choice(PATHS)
        if kind == "rename" and other != path:
            return f"renames {path} to {other}: {self.files.rename(path, other)}"
        return "nothing"


# ------------------------------------------------------------------- the faults


async def inject_faults(world: FilesWorld) -> None:
    """Inject faults, one after the other."""
    rng = world.rng
    world.has_faults = True
    for _ in range(world.setting.faults):
        await simulated_sleep(rng.uniform(1.0, SOFT_S))
        if rng.random() < 0.5:
            volume = rng.choice(list(world.volumes.values()))
            world.copies.append((volume.name, volume.copy()))
        world.faults += 1
        _inject_one(world, rng)
        _keep_running(world)
        await simulated_sleep(rng.uniform(0.0, 2 * SOFT_S))
        for volume in world.volumes.values():
            if rng.random() < 0.5:
                _repair(volume)
        world.journal_is_up = True
    await simulated_sleep(rng.uniform(0.0, HARD_S))


def _repair(volume: SimVolume) -> None:
    if volume.is_away:
        volume.remount()
    volume.is_away = volume.is_full = False
    volume.failure_rate, volume.failing_syncs = 0.0, 0


def _keep_running(world: FilesWorld) -> None:
    names = [each.process.name.partition("-")[0] for each in world.running]
    for _ in range(world.setting.writers - names.count("writer")):
        world.start("writer", FilesProcess.write_files)
    if "monitor" not in names:
        world.start("monitor", FilesProcess.monitor_files)


def _inject_one(world: FilesWorld, rng: random.Random) -> None:
    kind = rng.choice(_KINDS)
    if kind in _OF_PROCESSES:
        process = rng.choice(world.running) if world.running else None
        if process is not None:
            world.trace(f"-- {kind} {process.process.name}")
            _OF_PROCESSES[kind](process, rng)
        return
    volume = rng.choice(list(world.volumes.values()))
    world.trace(f"-- {kind} {volume.name if kind in _OF_VOLUMES else ''}")
    if kind in _OF_VOLUMES:
        _OF_VOLUMES[kind](world, volume, rng)
    elif kind == "journal":
        world.journal_is_up = False
    else:
        world.restart_machine(with_power_cut=kind == "power cut")


def _fail_syncs(_world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    volume.failing_syncs = rng.randint(1, 4)


def _fail_calls(_world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    volume.failure_rate = rng.choice((0.02, 0.2, 1.0))


def _fill(_world: FilesWorld, volume: SimVolume, _rng: random.Random) -> None:
    volume.is_full = True


def _take_away(_world: FilesWorld, volume: SimVolume, _rng: random.Random) -> None:
    volume.is_away = True


def _come_back_empty(world: FilesWorld, volume: SimVolume, _rng: random.Random) -> None:
    _become(world, volume, {volume.root: {}})


def _come_back_old(world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    copies = [copy for name, copy in world.copies if name == volume.name]
    if copies:
        _become(world, volume, rng.choice(copies))


def _become(world: FilesWorld, volume: SimVolume, contents: dict[str, dict[str, bytes]]) -> None:
    world.checks.become(volume, contents)
    for each in world.running:  # what it has open there is gone
        each.process.met_trouble(volume.name)


def _flip(world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    world.trace(f"-- a bit of {volume.flip(rng)}")


def _drop_caches(_world: FilesWorld, volume: SimVolume, _rng: random.Random) -> None:
    volume.drop_caches()


def _fail_write_back(_world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    dirty = [(path, file) for path, file in volume.files() if file.waiting]
    if dirty:
        path, file = rng.choice(dirty)
        volume.fail_write_back(file, path)
        volume.failing_syncs += 1  # the next sync reports it, once


def _kill(process: FilesProcess, _rng: random.Random) -> None:
    process.process.kill()


def _pause(process: FilesProcess, rng: random.Random) -> None:
    process.process.pause(rng.uniform(0.0, 2 * HARD_S))


def _exhaust(process: FilesProcess, rng: random.Random) -> None:
    process.disk.exhausted = rng.randint(1, 40)
    process.disk.exhausted_as = rng.choice((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


_OF_VOLUMES = {
    "fail syncs": _fail_syncs,
    "fail": _fail_calls,
    "full": _fill,
    "away": _take_away,
    "back empty": _come_back_empty,
    "old copy": _come_back_old,
    "flip": _flip,
    "drop caches": _drop_caches,
    "write-back fails": _fail_write_back,
}
_OF_PROCESSES = {"kill": _kill, "pause": _pause, "exhausted": _exhaust}
_KINDS = (
    *("kill", "kill", "pause", "pause", "pause", "power cut", "restart", "journal"),
    *("fail syncs", "fail syncs", "fail", "full", "away", "back empty", "old copy"),
    *("flip", "flip", "drop caches", "write-back fails", "exhausted", "exhausted"),
)


# ------------------------------------------------------------------- the phases


async def _run_phases(seed: int, trace: Callable[[str], None] | None) -> FilesRun:
    world = FilesWorld(draw_setting(seed), trace)
    try:
        await set_up(world)
        _keep_running(world)
        await inject_faults(world)
        await stop_faults(world)
        await check_at_the_end(world)
        ((world.refused,),) = world.database.rows("SELECT refused FROM fs_meta")
    finally:
        world.end()
    world.check()
    return FilesRun(
        seed=seed,
        processes=len(world.processes),
        volumes=len(world.volumes),
        simulated_s=round(world.loop.time(), 3),
        faults=world.faults,
        acknowledged=world.checks.acknowledged_bytes,
        recoveries=world.checks.recoveries,
        losses=world.checks.losses,
        refused=world.refused,
        power_cuts=world.power_cuts,
        story=world.story(),
    )


async def set_up(world: FilesWorld) -> None:
    """Make the volumes, and register them with the journal."""

    def make(process: FilesProcess) -> None:
        del process

    def prepare() -> None:
        limits = maker.options.limits
        database = ProcessDatabase(world.database, maker.process, lambda: True)
        journal = Journal(
            database,
            StepwiseCommit(
                database,
                maker.process,
                limits=limits,
                committed=lambda _process, _step: None,
                loses_answer=lambda: False,
            ),
            limits,
        )
        namespace = journal.namespace_id(new_id="simulated")
        for volume in world.volumes.values():
            Volume.make(volume.root, disk=maker.disk, namespace=namespace, id=volume.name)
            journal.register_volume(volume.name, volume.root)
            volume.settle()

    maker = FilesProcess(world, "maker", make)
    world.processes.append(maker)
    maker.process.start(prepare)
    await world.wait_for(maker)


async def stop_faults(world: FilesWorld) -> None:
    """Stop the faults, and wait until no process is left."""
    world.has_faults, world.journal_is_up, world.is_over = False, True, True
    for volume in world.volumes.values():
        _repair(volume)
    for each in world.running:
        each.disk.exhausted = 0
    world.trace("the faults stop")
    for each in list(world.running):
        with suppress(BaseException):
            await world.wait_for(each)


_ATTEMPTS = 5


async def check_at_the_end(world: FilesWorld) -> None:
    """Recover, read and verify all files, after all caches were dropped."""

    def check(process: FilesProcess) -> None:
        for file in list(world.checks.files.values()):
            _recover_all(process, file)
        for volume in world.volumes.values():
            volume.remount()
        for file in list(world.checks.files.values()):
            _check_file(process, file)

    await world.wait_for(world.start("operator", check))


def _recover_all(process: FilesProcess, file: KnownFile) -> None:
    """Recover a file, as often as it takes; accept a loss only where nothing is sound."""
    checks = process.world.checks
    last: Exception | None = None
    for _ in range(_ATTEMPTS):
        process._recovers(file.path)  # noqa: SLF001 - the same module
        try:
            process.files.recover(file.path, timeout=AT_ONCE)
        except LeaseholdError as error:
            process.world.trace(f"operator: {file.path}: {type(error).__name__} {error}")
            process.process.sleep(ATTEMPT_S)
            last = error
        else:
            return
    open_block = checks._open_block(file)  # noqa: SLF001 - the same simulator
    if (
        open_block is not None
        and open_block.start < file.synced
        and any(checks.is_sound(open_block.id, each, durable=True) for each in open_block.volumes)
    ):
        checks.found(f"{file.path} can not be recovered, and a replica is sound: {last}")
    process.files.recover(file.path, timeout=AT_ONCE, accept_loss=True, lost_detail="by a seed")
    process.world.trace(f"operator: {file.path} with its loss")


def _check_file(process: FilesProcess, file: KnownFile) -> None:
    checks = process.world.checks
    process._tried("read", lambda: process.read(file.path))  # noqa: SLF001
    faults = process.files.verify(file.path)
    wrong = set()
    for block in checks.blocks.values():
        if block.file_id == file.id:
            data = file.content(block.start + block.length)[block.start :]
            for name in block.volumes:
                if not _has(process.world.volumes[name], block.id, data):
                    wrong.add((block.id, name))
    for fault in faults:
        process.world.trace(f"operator: {fault.path} {fault.volume}: {fault.what}")
    checks.verified(file, faults, wrong)


def _has(volume: SimVolume, block: int, data: bytes) -> bool:
    name = f"/{block:016x}.data"
    return any(
        path.endswith(name) and bytes(file.now[: len(data)]) == data
        for path, file in volume.files()
    )


@contextmanager
def _logger_disabled() -> Iterator[None]:
    """Disable the logger: volumes fail by the hundred here."""
    logger = logging.getLogger("leasehold.files")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
