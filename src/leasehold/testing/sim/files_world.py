"""A machine with bad volumes, and the processes on it that write, recover, own and read files."""

from __future__ import annotations

import asyncio
import hashlib
import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, cast

from leasehold.clock import host_name
from leasehold.errors import LeaseholdError, StoreError, UnknownFile
from leasehold.files.journal import Journal
from leasehold.files.model import FileHolder, FileOptions
from leasehold.files.monitor import Monitor
from leasehold.files.namespace import Namespace
from leasehold.files.open_files import BoundedDisk, OpenFiles
from leasehold.files.recovery import RecoveryContext
from leasehold.files.repair import Repairer
from leasehold.files.volumes import Volumes
from leasehold.testing.sim.bad_volumes import SimDisk, SimVolume
from leasehold.testing.sim.blocking_process import (
    WORST_STEPS,
    ProcessDatabase,
    ProcessEnded,
    SimClock,
    SimDatabase,
    SimProcess,
    StepwiseCommit,
    Turns,
)
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.file_checks import FileChecks
from leasehold.testing.sim.loop import simulated_sleep

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from leasehold.files.disk import Bytes
    from leasehold.files.model import FileStatus
    from leasehold.files.writer import FileWriter

SOFT_S, HARD_S, ATTEMPT_S = 10.0, 30.0, 15.0
PATHS = ("/a", "/dir/b", "/dir/c")
AT_ONCE = timedelta(0)
_PATTERN = hashlib.shake_256(b"leasehold").digest(1 << 17)
_SIZES = (1, 100, 700, 1500, 4096, 9000)
_BLOCK_BYTES = 4096


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
    has_log: bool


def draw_setting(seed: int) -> FilesSetting:
    """Draw the setting of a run."""
    rng = random.Random(f"{seed}/files")
    volumes = rng.choice((1, 2, 2, 3))
    return FilesSetting(
        seed=seed,
        volumes=volumes,
        lying=frozenset(each for each in range(volumes) if rng.random() < 0.15),
        writers=rng.randint(1, 3),
        faults=rng.randint(3, 6),
        steps_between=rng.choice((20, 60, 200)),
        replication=rng.choice((None, None, volumes, 1)),
        answer_lost=rng.choice((0.0, 0.0, 0.02)),
        open_files=rng.choice((4, 16, 64)),
        has_log=rng.random() < 0.35,
    )


class WatchedWriter:
    """A real writer, and the checks that see what it is given and what it acknowledges."""

    def __init__(self, writer: FileWriter, process: FilesProcess) -> None:
        self.real = writer
        self._process = process
        self._checks = process.world.checks
        self.file_id = writer._ticket.file_id  # noqa: SLF001 - which file it is, not only its path
        self.path, self.epoch = writer.path, writer.epoch

    @property
    def length(self) -> int:
        """All that was written."""
        return self.real.length

    def write(self, data: Bytes) -> int:
        """Write, and remember what."""
        term = self._checks.writing(self.file_id, self.epoch)
        if term is None:
            return self.real.write(data)
        term.data += bytes(data)
        size = self.real.write(data)
        term.handed = term.attempted
        return size

    def flush(self) -> int:
        """Flush, and check what was acknowledged."""
        return self._acknowledged(self.real.flush, durable=False)

    def sync(self) -> int:
        """Sync, and check what was acknowledged."""
        return self._acknowledged(self.real.sync, durable=True)

    def close(self) -> FileStatus | None:
        """Close."""
        self._process.recovers(self.path)
        return self.real.close()

    def discard(self) -> None:
        """Delete the file."""
        self.real.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _acknowledged(self, call: Callable[[], int], *, durable: bool) -> int:
        length = call()
        self._checks.acknowledged(self.file_id, self.epoch, length, durable=durable)
        return length


class SimNamespace(Namespace):
    """The namespace of a simulated process: it waits in simulated time, and is watched."""

    process: FilesProcess

    def _wait(self, seconds: float) -> None:
        self.process.process.sleep(seconds)

    def create(self, path: str, **how: Any) -> FileWriter:
        """Begin a new file."""
        return cast("FileWriter", WatchedWriter(super().create(path, **how), self.process))

    def append(self, path: str) -> FileWriter:
        """Continue a file."""
        return cast("FileWriter", WatchedWriter(super().append(path), self.process))


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
        self.log: ModuleType | None = None
        if setting.has_log:  # Arrow takes its time to load
            self.log = import_module("leasehold.testing.sim.log_work")
            self.producers = self.log.Producers(self.checks)
        self.boot_id = self.rng.randbytes(16)
        self.journal_is_up = True
        self.has_faults = self.is_over = self.is_older = self.is_ended = False
        self.faults = self.power_cuts = self.refused = self.events = 0
        self.databases: list[bytes] = []
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
        elif chance < (0.5 if what in WORST_STEPS else 0.05):
            pause_s = process.rng.uniform(0.0, 2 * HARD_S)
            self.trace(f"{process.name} is paused at {what!r} for {pause_s:.1f} s")
            process.sleep(pause_s)
        else:
            process.sleep(process.rng.choice((0.0, 0.01, 0.3)))

    def committed(self, process: SimProcess, step: str) -> None:
        """Look at the journal after a step."""
        if not self.is_older:
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
            if self.log is not None:
                self.producers.restarted()

    async def wait_for(self, process: FilesProcess) -> None:
        """Wait until a process has ended by itself."""
        for _ in range(100_000):
            if process.process.ended:
                break
            await simulated_sleep(1.0)
        self._raise_errors()

    def end(self) -> None:
        """End all threads, and give everything back."""
        if self.is_ended:
            return
        self.has_faults, self.is_ended = False, True
        for each in self.processes:
            if not each.process.ended:
                each.process.kill()
            each.process.join()
        self.database.end()

    def check(self) -> None:
        """Raise what the checks have found, or an error that no process may raise."""
        if self.checks.broken:
            raise InvariantBroken(self.checks.broken[0])
        self._raise_errors()

    def _raise_errors(self) -> None:
        for each in self.processes:
            if each.process.error is not None:
                raise InvariantBroken(
                    f"{each.process.name}: {each.process.error!r} reached the program"
                ) from each.process.error


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
        self.disk = SimDisk(
            world.volumes,
            self.process,
            random.Random(f"{name}/disk"),
            on_acknowledged=world.checks.offered,
        )
        self.writers: list[FileWriter] = []
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
        self.files.process = self
        self._main(self)

    # --------------------------------------------------------------- what processes do

    def write_files(self) -> None:
        """Write, read and recover files, until the run is over."""
        while not self.world.is_over:
            self.process.sleep(self.rng.uniform(0.0, 2.5))
            self.files.renewer.run_once()
            act = self.rng.choice(
                (
                    *(self._write, self._write, self._write, self._write, self._open, self._open),
                    *(self._close, self._read, self._read, self._other),
                )
            )
            self.tried(act.__name__.removeprefix("_"), act)
        for writer in list(self.writers):
            self.tried("close", partial(self._close_one, writer))

    def own_partition(self) -> None:
        """Own the partition of the log whenever it is free, until the run is over."""
        assert self.world.log is not None
        work = self.world.log.OwnerWork(
            self.files, self.world.producers, self.rng, clock=self.world.clock
        )
        while not self.world.is_over:
            self.process.sleep(self.rng.uniform(0.0, 3.0))
            self.files.renewer.run_once()
            self.tried("send", partial(work.send, soft_s=SOFT_S, recovers=self.recovers))

    def monitor_files(self) -> None:
        """Recover what is silent, remove what is not needed, and copy what is missing."""
        monitor = self.monitor()
        repairer = Repairer(
            self.context, self.holder, clock=self.world.clock, rng=self.rng, options=self.options
        )
        try:
            while not self.world.is_over:
                self.process.sleep(self.rng.uniform(2.0, 6.0))
                self.tried("look", monitor.run_once)
                self.tried("repair", repairer.run_once)
        finally:
            with suppress(ProcessEnded):
                repairer.close()

    def monitor(self) -> Monitor:
        """Return a monitor, to be run by hand."""
        return Monitor(
            self.context,
            self.holder,
            clock=self.world.clock,
            rng=self.rng,
            interval_s=2.0,
            budget_s=5.0,
        )

    def tried(self, what: str, act: Callable[[], object]) -> bool:
        """Do something that may fail, as ``LeaseholdError``."""
        try:
            done = act()
        except LeaseholdError as error:
            self.world.trace(f"{self.process.name} {what}: {type(error).__name__}")
            return False
        self.world.trace(f"{self.process.name} {what}: {done}")
        return True

    def _open(self) -> str:
        if len(self.writers) > 2:
            return "has enough"
        path = self.rng.choice(PATHS)
        kind = self.rng.choice(("create", "create", "append", "append", "append", "overwrite"))
        if kind == "append":
            writer = self.files.append(path)
        else:
            writer = self.files.create(path, overwrite=kind == "overwrite")
        self.writers.append(writer)
        return f"{path} from {writer.length} under epoch {writer.epoch}"

    def _write(self) -> str:
        if not self.writers:
            return self._open()
        writer = self.rng.choice(self.writers)
        size = self.rng.choice(_SIZES)
        at = (writer.epoch * 10007 + writer.length) % (len(_PATTERN) - size)
        try:
            writer.write(_PATTERN[at : at + size])
            kind = self.rng.choice(("write", "flush", "flush", "sync"))
            if kind == "write":
                return f"writes {size} to {writer.path}"
            length = writer.sync() if kind == "sync" else writer.flush()
        except StoreError:
            raise
        except LeaseholdError:
            if self.rng.random() < 0.7:
                self._close_one(writer)
            raise
        return f"{kind} {writer.path} at {length}"

    def _close(self) -> str:
        if not self.writers:
            return "nothing is open"
        return self._close_one(self.rng.choice(self.writers))

    def _close_one(self, writer: FileWriter) -> str:
        try:
            status = writer.close()
        except StoreError:
            raise
        except LeaseholdError:
            self.writers.remove(writer)
            raise
        self.writers.remove(writer)
        return f"{writer.path} at {None if status is None else status.length}"

    def recovers(self, path: str) -> None:
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
            self.recovers(path)
            return f"recovers {path}: {self.files.recover(path, timeout=AT_ONCE).length}"
        if kind == "delete" and self.rng.random() < 0.3:
            return f"deletes {path}: {self.files.delete(path)}"
        other = self.rng.choice(PATHS)
        if kind == "rename" and other != path:
            return f"renames {path} to {other}: {self.files.rename(path, other)}"
        return "nothing"
