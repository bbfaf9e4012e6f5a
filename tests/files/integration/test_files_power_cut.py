"""A power cut at a random moment: what was synced stays, and all replicas agree about the rest.

The journal is a real database: what it committed stays. The volumes forget what was not synced.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.file_process import LazyDisk, check_replicas, in_memory, options, pattern

from leasehold.clock import SystemClock
from leasehold.errors import UnknownFile
from leasehold.files import FileState, FileWriter, Namespace
from leasehold.files.block_writer import SYNC_EVERY_BYTES
from leasehold.testing.disk import PowerCutDisk, RecordingDisk

CHUNKS = [0, 1, 2, *(pytest.param(each, marks=pytest.mark.soak) for each in range(3, 10))]
SEEDS_PER_CHUNK = 50
PATIENCE = timedelta(seconds=120)
LONG = 1 << 60


class PowerOff(BaseException):
    """No error that a program could handle: the machine is off."""


class Plug(RecordingDisk):
    """Pulled when so many points have been passed; from then on nothing reaches the volumes."""

    left = LONG

    def passed(self, point: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerOff


class Machine:
    """One machine and its disks, over many starts, and what it promised about its files."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        self.url = f"sqlite:///{root}/journal.db"
        self.volumes = [root / f"volume{number}" for number in range(3)]
        self.power = PowerCutDisk(LazyDisk())
        self.plug = Plug(self.power)
        self.flushed = self.synced = 0
        self.writer: FileWriter | None = None
        self.boot_id = rng.randbytes(16)
        self.start()

    def start(self) -> None:
        """A new process; its boot id is that of the machine."""
        opened = Namespace.open(
            self.url, volumes=self.volumes, options=options(), run_monitor=False, disk=self.plug
        )
        self.files = Namespace(
            replace(opened._context, boot_id=self.boot_id, up_s=0.0),
            opened._holder,
            options=options(),
            clock=SystemClock(),
        )

    def end(self, *, with_power: bool) -> None:
        """Everything stops as it is: the processes, or the machine and then the power is back."""
        self.plug.left = LONG
        if not with_power:
            self.boot_id = self.rng.randbytes(16)
            self.power.cut(self.rng)
            self.flushed = self.synced  # that is all that was promised for this
        if self.writer is not None:  # gives descriptors back and nothing else, as an exit does
            self.writer._block.close()
        self.files._renewer.close()
        self.files._journal.close()
        self.writer = None
        self.start()

    def write(self, path: str) -> None:
        """Anything a writer may do, in any order."""
        self.writer = self.files.create(path, replication=self.rng.randint(1, 3))
        for _ in range(self.rng.randint(1, 15)):
            step = self.rng.choice(("write", "write", "write", "flush", "sync", "reopen"))
            if step == "write":
                start, size = self.writer.length, self.rng.choice((1, 100, 1500, 5000))
                self.writer.write(pattern(path)[start : start + size])
            elif step == "flush":
                self.flushed = self.writer.flush()
            elif step == "sync":
                self.synced = self.flushed = self.writer.sync()
            else:
                self.close()
                self.writer = self.files.append(path)
        if self.rng.random() < 0.3:
            self.close()

    def close(self) -> None:
        assert self.writer is not None
        status = self.writer.close()
        assert status is not None
        self.synced = self.flushed = status.length


def promised(files: Namespace, path: str, *, least: int) -> bytes:
    """The file as it is after recovery, when all that was promised about it holds."""
    status = files.recover(path, timeout=PATIENCE)
    found = files.read(path).read()
    assert status.state is FileState.CLOSED
    assert least <= status.length == len(found)
    assert found == pattern(path)[: len(found)]
    check_replicas(files, path)
    assert files.recover(path, timeout=PATIENCE) == status
    return found


def one_life(machine: Machine, path: str) -> bytes | None:
    """A file that is written until all ends, and maybe again and again while it is recovered."""
    rng = machine.rng
    machine.synced = machine.flushed = 0
    machine.plug.left = rng.choice((LONG, *(rng.randint(0, 300) for _ in "abc")))
    with suppress(PowerOff):
        machine.write(path)
    machine.end(with_power=rng.random() < 0.4)
    try:
        machine.files.status(path)
    except UnknownFile:
        assert not machine.flushed
        return None
    while rng.random() < 0.7:
        machine.plug.left = rng.randint(0, 150)
        with suppress(PowerOff):
            machine.synced = machine.files.recover(path, timeout=PATIENCE).length
            assert machine.synced >= machine.flushed
        machine.end(with_power=rng.random() < 0.4)
    found = promised(machine.files, path, least=max(machine.flushed, machine.synced))
    machine.end(with_power=False)  # a closed file survives anything
    assert promised(machine.files, path, least=len(found)) == found
    return found


@pytest.mark.spec("F7", "F8")
@pytest.mark.parametrize("chunk", CHUNKS)
def test_what_was_synced_survives_a_power_cut_at_any_moment(chunk: int) -> None:
    with in_memory() as root:
        machine = Machine(Path(root), random.Random(chunk))
        lives: dict[str, bytes] = {}
        for number in range(SEEDS_PER_CHUNK):
            path = f"/{chunk}/{number}"
            machine.rng.seed(chunk * SEEDS_PER_CHUNK + number)
            try:
                found = one_life(machine, path)
            except AssertionError as error:
                error.add_note(f"life {path}")
                raise
            if found is not None:
                lives[path] = found
        assert len(lives) > SEEDS_PER_CHUNK / 2
        # Closed files have lived through all the cuts that came after them.
        for path, found in lives.items():
            assert promised(machine.files, path, least=len(found)) == found
        machine.files.close()


def test_a_sync_counts_also_when_all_bytes_are_durable_already(tmp_path: Path) -> None:
    with Namespace.open(
        f"sqlite:///{tmp_path}/journal.db",
        volumes=[tmp_path / "volume"],
        run_monitor=False,
        disk=LazyDisk(),
    ) as files:
        writer = files.create("/big")
        writer.write(bytes(SYNC_EVERY_BYTES))  # synced on the way, and nobody was told
        assert files.read("/big").length == 0
        assert writer.sync() == SYNC_EVERY_BYTES
        assert files.read("/big").length == SYNC_EVERY_BYTES
        writer.close()
