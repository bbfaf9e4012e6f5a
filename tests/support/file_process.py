"""A small real program over the files room that dies, or stops itself, at a point that was named.

An order says what to do, to which file, and at which point to do what. Points are those of
``leasehold.testing.disk``, such as ``"after sync block"``, and ``"before commit create"`` or
``"after commit create"`` for the steps of the journal. Every acknowledgement is said on stdout, as
one JSON object per line, before the program goes on.

``python -m tests.support.file_process serve`` reads one order per line and carries out each in
a forked process; ``run '<order>'`` carries out one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from tests.support.pausing import pause_me

from leasehold.errors import LeaseholdError, LeaseLost
from leasehold.files import FileOptions, FileWriter, Namespace
from leasehold.files.disk import SystemDisk
from leasehold.testing.disk import FailingDisk, KillingDisk, RecordingDisk

BLOCK_BYTES = 8192
LONGEST_BYTES = 64 << 10
NEVER = "never"
MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do; ``act`` is the name of a signal that the process sends to itself."""

    program: str
    url: str
    path: str
    point: str = NEVER
    nth: int = 1
    act: str = "SIGKILL"
    soft_s: float = 60.0

    def line(self) -> str:
        return json.dumps(asdict(self))


def pattern(path: str) -> bytes:
    """What all programs write to this file, each from where the file ends."""
    return random.Random(path).randbytes(LONGEST_BYTES)


def options(*, soft_s: float = 60.0) -> FileOptions:
    """Small blocks; a recovery that was killed holds nobody up."""
    return FileOptions(
        soft_limit=timedelta(seconds=soft_s),
        check_interval=timedelta(seconds=min(soft_s / 2, 1.0)),
        recovery_timeout=timedelta(milliseconds=10),
        block_bytes=BLOCK_BYTES,
    )


def in_memory() -> tempfile.TemporaryDirectory[str]:
    """A directory that is fast: a kill forgets nothing that was written, so it needs no disk."""
    return tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


class LazyDisk(SystemDisk):
    """Syncs nothing: for those that decide by themselves what a power cut would leave."""

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        return {}

    def sync_directory(self, path: str, *, what: str) -> None:
        return


def say(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def check_replicas(files: Namespace, path: str) -> None:
    """Every replica of every block has the same bytes; fewer of them than asked for is no fault."""
    faults = [fault for fault in files.verify(path) if fault.volume != "-"]
    assert faults == [], faults
    volumes = {volume.id: volume for volume in files.volumes}
    for block in files.read(path).blocks:
        assert block.volumes
        found = {Path(volumes[each].data_path(block.id)).read_bytes() for each in block.volumes}
        assert len({each[: block.length] for each in found}) == 1
        assert min(map(len, found)) >= block.length


class Program:
    """The programs by name; each runs once in a process of its own."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.failing = FailingDisk(SystemDisk())
        self.disk: RecordingDisk = KillingDisk(self.failing, order.point, order.nth, self._act)
        self.files = Namespace.open(
            order.url,
            name=order.program,
            options=options(soft_s=order.soft_s),
            run_monitor=False,
            disk=self.disk,
            hook=self._hook,
        )

    def run(self) -> None:
        self.disk.points.clear()
        programs: dict[str, Callable[[], None]] = {
            "write": self.write,
            "append": self.append,
            "recover": self.recover,
            "zombie": self.zombie,
        }
        programs[self.order.program]()
        say(event="points", points=self.disk.points)

    def write(self) -> None:
        """A file of two blocks and a half, with everything that can happen to a writer."""
        with self.files.create(self.order.path) as writer:
            say(event="created", epoch=writer.epoch)
            self._go_on(writer, 1000, writer.flush)
            self._go_on(writer, 500, writer.sync)
            self._go_on(writer, BLOCK_BYTES, writer.flush)
            self._fail(writer.volumes[0])
            self._go_on(writer, 700, writer.flush)
            self._go_on(writer, 300, lambda: 0)
        self._say_closed()

    def append(self) -> None:
        """More after the end of a file that is there."""
        with self.files.append(self.order.path) as writer:
            say(event="opened", epoch=writer.epoch)
            self._go_on(writer, 600, writer.flush)
            self._go_on(writer, BLOCK_BYTES, writer.sync)
            self._go_on(writer, 200, lambda: 0)
        self._say_closed()

    def recover(self) -> None:
        """Somebody else's file, brought to its end."""
        self.files.recover(self.order.path, timeout=timedelta(seconds=120))
        self._say_closed()

    def zombie(self) -> None:
        """Three pieces, each of one letter; whatever happens it tries to go on, then to close."""
        try:
            writer = self.files.create(self.order.path)
        except LeaseLost as error:
            self._say_lost("create", error)
            return
        say(event="created", epoch=writer.epoch)
        for letter in b"abc":
            self._try("write", writer, partial(writer.write, bytes([letter]) * 500))
            self._try("flush", writer, writer.flush)
        say(event="closing")
        self._try("close", writer, writer.close)
        for act in (lambda: writer.write(b"z" * BLOCK_BYTES), writer.flush, writer.sync):
            self._try("after", writer, act)

    def _try(self, what: str, writer: FileWriter, act: Callable[[], object]) -> None:
        try:
            act()
        except LeaseLost as error:
            self._say_lost(what, error)
        except LeaseholdError as error:
            say(event="refused", at=what, reason=type(error).__name__, message=str(error))
        else:
            say(event="acknowledged", at=what, length=writer.acknowledged)

    def _say_lost(self, what: str, error: LeaseLost) -> None:
        say(
            event="lost",
            at=what,
            key=error.key,
            epoch=error.epoch,
            reason=error.reason,
            now_held_by=error.now_held_by,
            message=str(error),
        )

    def _go_on(self, writer: FileWriter, size: int, ask: Callable[[], int]) -> None:
        start = writer.length
        writer.write(pattern(self.order.path)[start : start + size])
        if length := ask():
            say(event="acknowledged", length=length)

    def _fail(self, volume_id: str) -> None:
        (root,) = (each.root for each in self.files.volumes if each.id == volume_id)
        self.failing.fail(root)

    def _say_closed(self) -> None:
        say(event="closed", length=self.files.status(self.order.path).length)

    def _hook(self, step: str, when: str) -> None:
        self.disk.passed(f"{when} commit {step}")

    def _act(self) -> None:
        if self.order.act == "SIGSTOP":
            pause_me(self.order.url)
        else:
            os.kill(os.getpid(), signal.Signals[self.order.act])


def carry_out(order: Order) -> int:
    try:
        Program(order).run()
    except BaseException:  # noqa: BLE001 - whatever it is, whoever started us should read it
        with suppress(OSError):
            say(event="failed", trace=traceback.format_exc())
        return 1
    return 0


def warm_up() -> None:
    """Load all that the programs need, once; no thread and no file is left open."""
    with (
        in_memory() as root,
        Namespace.open(
            f"sqlite:///{root}/journal.db", volumes=[f"{root}/volume"], run_monitor=False
        ) as files,
    ):
        files.create("/warm").close()
        files.recover("/warm", timeout=timedelta(seconds=1))


def serve() -> None:
    warm_up()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(carry_out(Order(**json.loads(line))))
        _, status = os.waitpid(child, 0)
        say(event="ended", signal=os.WTERMSIG(status), code=os.WEXITSTATUS(status))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        sys.exit(carry_out(Order(**json.loads(sys.argv[2]))))
