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

import errno
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError
from leasehold.files.journal import Journal
from leasehold.files.volumes import Volume
from leasehold.testing.sim.bad_volumes import SimVolume, block_of
from leasehold.testing.sim.blocking_process import (
    ProcessDatabase,
    StepwiseCommit,
)
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.files_world import (
    AT_ONCE,
    ATTEMPT_S,
    HARD_S,
    PATHS,
    SOFT_S,
    FilesProcess,
    FilesWorld,
    draw_setting,
)
from leasehold.testing.sim.loop import run_simulated, simulated_sleep

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from leasehold.testing.sim.file_checks import KnownFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRun:
    """The result of a seed: equal in every run. ``story`` digests every step.

    ``acknowledged``: bytes; ``losses``: how often a file became shorter than it was acknowledged,
    which only happens when all replicas were destroyed; ``copied``: replicas that were made again;
    ``refused``: steps of former writers that the journal refused; ``power_cuts``: of the machine;
    ``events``: what is in the log at the end; ``resent``: batches that were sent again.
    """

    seed: int
    processes: int
    volumes: int
    simulated_s: float
    faults: int
    acknowledged: int
    recoveries: int
    losses: int
    copied: int
    refused: int
    power_cuts: int
    events: int
    resent: int
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


# ------------------------------------------------------------------- the faults


async def inject_faults(world: FilesWorld) -> None:
    """Inject faults, one after the other."""
    rng = world.rng
    world.has_faults = True
    for _ in range(world.setting.faults):
        await simulated_sleep(rng.uniform(0.0, SOFT_S / 2))
        for volume in world.volumes.values() if rng.random() < 0.5 else ():
            world.copies.append((volume.name, volume.copy()))
            world.databases.append(world.database.copy())
        await simulated_sleep(rng.uniform(0.0, SOFT_S))
        world.faults += 1
        _inject_one(world, rng)
        _keep_running(world)
        await simulated_sleep(rng.uniform(0.0, 1.2 * SOFT_S))
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
    for _ in range(2 - names.count("owner") if world.log is not None else 0):
        world.start("owner", FilesProcess.own_partition)
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
        if rng.random() < 0.5:  # also what was being written is left to a recovery
            world.restart_machine(with_power_cut=False)
        _become(world, volume, rng.choice(copies[-2:]))


def _become(world: FilesWorld, volume: SimVolume, contents: dict[str, dict[str, bytes]]) -> None:
    world.checks.become(volume, contents)
    for each in world.running:  # what it has open there is gone
        each.process.met_trouble(volume.name)


def _copy_back(world: FilesWorld, volume: SimVolume, _rng: random.Random) -> None:
    volume.copy_back()
    for each in world.running:  # what it has open there has no name any more
        each.process.met_trouble(volume.name)


def _flip(world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    is_open = [each.id for each in world.checks.blocks.values() if each.state == "open"]
    world.trace(f"-- a bit of {volume.flip(rng, prefer=is_open)}")


def _drop_caches(_world: FilesWorld, volume: SimVolume, _rng: random.Random) -> None:
    volume.drop_caches()


def _fail_write_back(_world: FilesWorld, volume: SimVolume, rng: random.Random) -> None:
    dirty = [(path, file) for path, file in volume.files() if file.waiting]
    if dirty:
        path, file = rng.choice(dirty)
        volume.fail_write_back(file, path)


def _kill(process: FilesProcess, _rng: random.Random) -> None:
    process.process.kill()


def _pause(process: FilesProcess, rng: random.Random) -> None:
    process.process.pause(rng.uniform(0.0, 2 * HARD_S))


def _exhaust(process: FilesProcess, rng: random.Random) -> None:
    process.disk.exhausted = rng.choice((1, 1, 2, 5, 40))
    process.disk.exhausted_as = rng.choice((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


_OF_VOLUMES = {
    "fail syncs": _fail_syncs,
    "fail": _fail_calls,
    "full": _fill,
    "away": _take_away,
    "back empty": _come_back_empty,
    "old copy": _come_back_old,
    "copied back": _copy_back,
    "flip": _flip,
    "drop caches": _drop_caches,
    "write-back fails": _fail_write_back,
}
_OF_PROCESSES = {"kill": _kill, "pause": _pause, "exhausted": _exhaust}
_KINDS = (
    *("kill", "kill", "pause", "pause", "power cut", "power cut", "power cut", "restart"),
    *("fail syncs", "fail syncs", "fail", "full", "away", "back empty", "old copy", "old copy"),
    *("flip", "flip", "flip", "drop caches", "write-back fails", "write-back fails"),
    *("copied back", "exhausted", "exhausted", "exhausted", "journal"),
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
        if world.databases and world.rng.random() < 0.5:
            await use_an_older_database(world)
        ((world.refused,),) = world.database.rows("SELECT refused FROM fs_meta")
    except InvariantBroken:
        world.end()
        world.check()  # what was found first is the cause
        raise
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
        copied=world.checks.copied,
        refused=world.refused,
        power_cuts=world.power_cuts,
        events=world.events,
        resent=world.producers.resent if world.log is not None else 0,
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
        if world.log is not None:
            world.events = world.log.check_log(process.files, world.producers, world.checks)
            world.trace(f"operator: {world.events} events")

    await world.wait_for(world.start("operator", check))


def _recover_all(process: FilesProcess, file: KnownFile) -> None:
    """Recover a file, as often as it takes; accept a loss only where nothing is sound."""
    checks = process.world.checks
    last: Exception | None = None
    for _ in range(_ATTEMPTS):
        process.recovers(file.path)
        try:
            process.files.recover(file.path, timeout=AT_ONCE)
        except LeaseholdError as error:
            process.world.trace(f"operator: {file.path}: {type(error).__name__} {error}")
            process.process.sleep(ATTEMPT_S)
            last = error
        else:
            return
    if checks.must_recover(file):
        checks.found(f"{file.path} can not be recovered, and a replica is sound: {last}")
    try:
        process.files.recover(file.path, timeout=AT_ONCE, accept_loss=True)
    except LeaseholdError as error:
        checks.found(f"{file.path} can not be recovered with its loss either: {error}")


def _check_file(process: FilesProcess, file: KnownFile) -> None:
    checks = process.world.checks
    process.tried("read", lambda: process.read(file.path))
    faults = process.files.verify(file.path)
    wrong = set()
    for block in checks.blocks.values():
        if block.file_id == file.id:
            data = file.content(block.start + block.length)[block.start :]
            for name in block.volumes:
                copy = block.copies[name]
                file_name = f"{block.id:016x}{f'+{copy:016x}' if copy else ''}.data"
                if not _has(process.world.volumes[name], file_name, data):
                    wrong.add((block.id, name))
    for fault in faults:
        process.world.trace(f"operator: {fault.path} {fault.volume}: {fault.what}")
    checks.verified(file, faults, wrong)


def _has(volume: SimVolume, file_name: str, data: bytes) -> bool:
    return any(
        path.endswith(f"/{file_name}") and bytes(file.now[: len(data)]) == data
        for path, file in volume.files()
    )


# ------------------------------------------------------------------- an older database


async def use_an_older_database(world: FilesWorld) -> None:
    """Put an older database under the volumes, use it, and put the newer one back."""
    newer, older = world.database.copy(), world.rng.choice(world.databases)
    world.database.restore(older)
    ((last_block,),) = world.database.rows("SELECT last_block_id FROM fs_meta")
    world.is_older = True
    world.trace(f"an older database, at block {last_block:#x}")
    sound = [volume for volume in world.volumes.values() if not volume.lies]
    before = {
        path: bytes(file.now)
        for volume in sound
        for path, file in volume.files()
        if block_of(path) > last_block and block_of(path) in world.checks.blocks
    }

    def use(process: FilesProcess) -> None:
        if process.rng.random() < 0.3:
            process.tried("adopt", process.files.adopt_volumes)
        monitor = process.monitor()
        for path in PATHS:
            process.tried("older create", partial(_write_one, process, path, overwrite=False))
            process.tried("older recover", partial(process.files.recover, path, timeout=AT_ONCE))
            process.tried("older overwrite", partial(_write_one, process, path, overwrite=True))
            process.process.sleep(HARD_S + 1.0)
            process.tried("older look", monitor.run_once)

    await world.wait_for(world.start("older", use))
    world.database.restore(newer)
    after = {path: bytes(file.now) for volume in sound for path, file in volume.files()}
    changed = sorted(path for path in before if after.get(path) != before[path])
    if changed:
        world.checks.found(f"an older database has changed {changed[0]}, which only the newer knew")


def _write_one(process: FilesProcess, path: str, *, overwrite: bool) -> int:
    with process.files.create(path, overwrite=overwrite) as writer:
        writer.write(b"older")
        return writer.epoch


@contextmanager
def _logger_disabled() -> Iterator[None]:
    """Disable the logger: volumes fail by the hundred here."""
    logger = logging.getLogger("leasehold.files")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
