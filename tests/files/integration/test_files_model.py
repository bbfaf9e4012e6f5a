"""Random lives of files against a model: several writers, volumes that come and go, and time.

The model knows for every file what was acknowledged, what may be there beyond that, and who may
write. Everything runs in one thread and by a clock of its own, so a failing life can be repeated.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.file_process import LazyDisk, check_replicas, in_memory, pattern

from leasehold.errors import (
    FileExists,
    FileHeld,
    LeaseLost,
    RecoveryInProgress,
    TailUncertain,
    UnknownFile,
    VolumeUnusable,
)
from leasehold.files import FileOptions, FileState, FileStatus, FileWriter, Namespace
from leasehold.files.journal import Journal
from leasehold.files.volumes import Volume
from leasehold.testing.clock import ManualClock
from leasehold.testing.disk import FailingDisk

SOFT_S, HARD_S = 60.0, 1200.0
OPTIONS = FileOptions(
    soft_limit=timedelta(seconds=SOFT_S),
    hard_limit=timedelta(seconds=HARD_S),
    check_interval=timedelta(seconds=SOFT_S / 2),  # of real time: never in a test
    block_bytes=4096,
)
PATHS = ["/a", "/dir/b"]
WRITERS = range(2)
VOLUMES = range(3)
AT_ONCE = timedelta(0)
NO_VOLUME = (VolumeUnusable, TailUncertain, RecoveryInProgress)

writers = st.sampled_from(WRITERS)
volumes = st.sampled_from(VOLUMES)
paths = st.sampled_from(PATHS)
pens = st.integers(0, 1)
sizes = st.sampled_from([1, 100, 1000, 3000, 9000])
troubles = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS])


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Known:
    """What the model knows of a file: ``content`` is certain up to ``acknowledged``."""

    id: int
    epoch: int
    content: bytes = b""
    acknowledged: int = 0
    seen: int = 0
    closed: bool = False
    gone: bool = False


@dataclass(slots=True, eq=False)
class Pen:
    """A file open for writing, as its writer believes."""

    writer: FileWriter
    known: Known
    spoiled: bool = False

    @property
    def current(self) -> bool:
        return not self.known.gone and self.known.epoch == self.writer.epoch


@dataclass(slots=True, eq=False)
class Client:
    """One process, as it were."""

    files: Namespace
    pens: list[Pen] = field(default_factory=list)

    def die(self) -> None:
        """All its descriptors go, and it says nothing more."""
        for pen in self.pens:
            pen.writer._block.close()
        self.files._renewer.close()
        self.files._journal.close()


def only_if(expected: object, error: Exception) -> None:
    """This error is all right only if ``expected`` holds."""
    if not expected:
        raise AssertionError(f"{type(error).__name__} was not to come: {error}") from error


class Life(RuleBasedStateMachine):
    """Each rule is something that may happen; after each, journal and model must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.root = in_memory()
        self.url = f"sqlite:///{self.root.name}/journal.db"
        self.clock = ManualClock()
        self.disk = FailingDisk(LazyDisk())
        self.roots = [Path(self.root.name) / f"volume{number}" for number in VOLUMES]
        self.down: set[int] = set()
        self.files: dict[str, Known] = {}
        self.last_epoch = 0
        self.name_volumes()
        self.clients = [self.client() for _ in WRITERS]

    def name_volumes(self) -> None:
        """Names of their own would change the order of volumes from run to run."""
        journal = Journal.open(self.url, limits=OPTIONS.limits, clock=self.clock)
        namespace = journal.namespace_id(new_id="model")
        for root in self.roots:
            Volume.make(root, disk=self.disk, namespace=namespace, id=root.name)
            journal.register_volume(root.name, str(root))
        journal.close()

    def client(self) -> Client:
        return Client(
            Namespace.open(
                self.url,
                options=OPTIONS,
                run_monitor=False,
                clock=self.clock,
                disk=self.disk,
            )
        )

    def teardown(self) -> None:
        try:
            self.everything_ends_well()
        finally:
            for client in self.clients:
                client.die()
            self.root.cleanup()

    # ----------------------------------------------------------- opening

    @rule(who=writers, path=paths, overwrite=st.booleans())
    def create(self, who: int, path: str, overwrite: bool) -> None:
        before = self.files.get(path)
        try:
            writer = self.clients[who].files.create(path, overwrite=overwrite)
        except (FileExists, FileHeld) as error:
            only_if(before is not None, error)
            only_if(not overwrite, error)
        except NO_VOLUME as error:
            only_if(self.down or before is not None, error)
            self.adopt(path, before, overwrite=overwrite)
        else:
            assert before is None or overwrite
            self.opened(who, path, writer, Known(id=self.status(path).id, epoch=0))

    @rule(who=writers, path=paths)
    def append(self, who: int, path: str) -> None:
        before = self.files.get(path)
        try:
            writer = self.clients[who].files.append(path)
        except UnknownFile:
            assert before is None
        except FileHeld as held:
            assert before is not None
            assert not before.closed
            mine = held.holder == self.clients[who].files.holder
            assert mine or self.status(path).idle_s <= SOFT_S, "the soft limit was over"
        except NO_VOLUME as error:
            only_if(self.down or not (before and before.closed), error)
        else:
            assert before is not None
            start = writer.acknowledged
            assert max(before.acknowledged, before.seen) <= start <= len(before.content)
            before.content = before.content[:start]
            before.acknowledged, before.closed = start, False
            self.opened(who, path, writer, before)

    def opened(self, who: int, path: str, writer: FileWriter, known: Known) -> None:
        assert writer.epoch > self.last_epoch, "epochs rise"
        assert writer.volumes
        if path in self.files and self.files[path] is not known:
            self.files[path].gone = True
        self.last_epoch = known.epoch = writer.epoch
        self.files[path] = known
        self.clients[who].pens.append(Pen(writer, known))

    def adopt(self, path: str, before: Known | None, *, overwrite: bool) -> None:
        """A file that was made and could not be written is there, and empty."""
        found = {status.path: status for status in self.listed()}.get(path)
        if found is not None and (before is None or (overwrite and found.id != before.id)):
            if before is not None:
                before.gone = True
            self.files[path] = Known(id=found.id, epoch=found.epoch)

    # ----------------------------------------------------------- writing

    @rule(who=writers, which=pens, size=sizes)
    def write(self, who: int, which: int, size: int) -> None:
        pen = self.pen(who, which)
        if pen is not None:
            self.put(pen, size)

    @rule(who=writers, which=pens, size=sizes, durable=st.booleans())
    def write_and_flush(self, who: int, which: int, size: int, durable: bool) -> None:
        pen = self.pen(who, which)
        if pen is not None and self.put(pen, size):
            self.acknowledge(pen, durable=durable)

    @rule(data=st.data(), size=sizes)
    def everybody_writes(self, data: st.DataObject, size: int) -> None:
        """Also those who have lost their files."""
        for client in self.clients:
            for pen in tuple(client.pens):
                if self.put(pen, size):
                    self.acknowledge(pen, durable=data.draw(st.booleans()))

    @rule(who=writers, path=paths)
    def take_over(self, who: int, path: str) -> None:
        """As soon as the soft limit is over."""
        self.clock.advance(SOFT_S + 1)
        self.append(who, path)

    def put(self, pen: Pen, size: int) -> int | None:
        start = pen.writer.length
        data = pattern(str(pen.writer.epoch))[start : start + size]
        if pen.current and not pen.spoiled:
            assert start == len(pen.known.content)
            pen.known.content += data
        return self.tried(pen, lambda: pen.writer.write(data))

    def acknowledge(self, pen: Pen, *, durable: bool) -> None:
        news = pen.writer.length > pen.writer.acknowledged
        length = self.tried(pen, pen.writer.sync if durable else pen.writer.flush)
        if length is None:
            return
        if pen.current:
            assert length == len(pen.known.content)
            pen.known.acknowledged = length
        else:
            assert pen.known.gone or not news, "a former owner was told that its bytes are safe"

    @rule(who=writers, which=pens)
    def close(self, who: int, which: int) -> None:
        pen = self.pen(who, which)
        if pen is None:
            return
        current, whole = pen.current, not pen.spoiled
        status = self.tried(pen, pen.writer.close)
        self.clients[who].pens.remove(pen)
        if status is None:
            return
        assert current, "a former owner has closed the file"
        assert status.state is FileState.CLOSED
        if whole:
            assert status.length == len(pen.known.content)

    def tried(self, pen: Pen, act: Callable[[], T]) -> T | None:
        """What came of it; None if it was refused, for one of the reasons there may be."""
        try:
            return act()
        except LeaseLost as error:
            only_if(not pen.current, error)
            only_if(error.epoch == pen.writer.epoch, error)
            only_if(str(pen.writer.epoch) in str(error), error)
        except UnknownFile as error:
            only_if(pen.known.gone, error)
        except NO_VOLUME as error:
            only_if(self.down or pen.spoiled or not pen.current, error)
            pen.spoiled = True
        return None

    def pen(self, who: int, which: int) -> Pen | None:
        """One of the writer's files; if it has none, it opens one if it can."""
        pens = self.clients[who].pens
        if not pens:
            path = PATHS[which % len(PATHS)]
            self.append(who, path) if path in self.files else self.create(who, path, False)
        return pens[which % len(pens)] if pens else None

    # ---------------------------------------------------------- recovery

    @rule(who=writers, path=paths)
    def recover(self, who: int, path: str) -> None:
        known = self.files.get(path)
        try:
            status = self.clients[who].files.recover(path, timeout=AT_ONCE)
        except UnknownFile:
            assert known is None
        except (TailUncertain, VolumeUnusable) as error:
            only_if(self.down, error)
        else:
            assert status.state is FileState.CLOSED

    @rule(who=writers)
    def monitor(self, who: int) -> None:
        due = {
            status.id
            for status in self.listed()
            if status.state is FileState.OPEN and status.idle_s > HARD_S
        }
        self.clients[who].files.monitor.run_once()
        if not self.down:
            assert not due & {
                status.id for status in self.listed() if status.state is not FileState.CLOSED
            }

    @rule(who=writers)
    def renew(self, who: int) -> None:
        self.clients[who].files._renewer.run_once()

    # -------------------------------------------------------- the others

    @rule(who=writers, source=paths, goal=paths, overwrite=st.booleans())
    def rename(self, who: int, source: str, goal: str, overwrite: bool) -> None:
        if source == goal:
            return
        try:
            self.clients[who].files.rename(source, goal, overwrite=overwrite)
        except UnknownFile:
            assert source not in self.files
        except FileExists as error:
            only_if(goal in self.files, error)
            only_if(not overwrite, error)
        else:
            if source not in self.files:
                return  # the very rename that was done last, once more: nothing changes
            if goal in self.files:
                assert overwrite
                self.files[goal].gone = True
            self.files[goal] = self.files.pop(source)

    @rule(who=writers, path=paths)
    def delete(self, who: int, path: str) -> None:
        try:
            deleted = self.clients[who].files.delete(path)
        except UnknownFile:
            deleted = 0
        assert deleted == (path in self.files)
        if deleted:
            self.files.pop(path).gone = True

    @rule(seconds=st.sampled_from([1.0, SOFT_S / 2, SOFT_S + 1, HARD_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=volumes, number=troubles)
    def volume_fails(self, which: int, number: int) -> None:
        self.down.add(which)
        self.disk.fail(self.roots[which], number)

    @precondition(lambda self: self.down)
    @rule(which=volumes)
    def volume_is_back(self, which: int) -> None:
        self.down.discard(which)
        self.disk.heal(self.roots[which])

    @rule(who=writers, politely=st.booleans())
    def client_ends(self, who: int, politely: bool) -> None:
        """A process dies, or closes the namespace with files open; another takes its place."""
        if politely:
            self.clients[who].files.close()
        self.clients[who].die()
        self.clients[who] = self.client()

    # -------------------------------------------------------- invariants

    @invariant()
    def journal_and_model_agree(self) -> None:
        found = {status.path: status for status in self.listed()}
        assert found.keys() == self.files.keys()
        for path, status in found.items():
            self.agree(self.files[path], status)

    @invariant()
    def readers_see_what_was_acknowledged(self) -> None:
        for path, known in self.files.items():
            try:
                found = self.clients[0].files.read(path).read()
            except VolumeUnusable as error:
                only_if(self.down, error)
            else:
                assert max(known.acknowledged, known.seen) <= len(found)
                assert known.content.startswith(found)
                known.seen = len(found)

    def agree(self, known: Known, status: FileStatus) -> None:
        assert status.id == known.id
        assert status.epoch >= known.epoch
        if known.closed:
            assert status.length == len(known.content), "a closed file has changed"
            if status.state is not FileState.CLOSED:
                assert status.epoch > known.epoch, "opened again without a new epoch"
                known.closed = False
        elif status.state is FileState.CLOSED:
            assert max(known.acknowledged, known.seen) <= status.length <= len(known.content)
            known.content = known.content[: status.length]
            known.acknowledged, known.closed = status.length, True
        if status.epoch > known.epoch:
            self.last_epoch = max(self.last_epoch, status.epoch)
        known.epoch = status.epoch

    def listed(self) -> list[FileStatus]:
        return list(self.clients[0].files.list("/"))

    def status(self, path: str) -> FileStatus:
        return self.clients[0].files.status(path)

    def everything_ends_well(self) -> None:
        """With all volumes back and everybody silent, the monitor closes every file."""
        for which in VOLUMES:
            self.volume_is_back(which)
        files = self.clients[0].files
        for _ in range(5):
            self.clock.advance(2 * HARD_S)
            files.monitor.run_once()
        assert files.list_open("/") == []
        self.journal_and_model_agree()
        self.readers_see_what_was_acknowledged()
        for path in self.files:
            assert self.files[path].seen == len(self.files[path].content)
            check_replicas(files, path)
        self.nothing_is_left_over(files)

    def nothing_is_left_over(self, files: Namespace) -> None:
        """What lies on a volume belongs to a file."""
        wanted = {
            (block.id, volume)
            for path in self.files
            for block in files.read(path).blocks
            for volume in block.volumes
        }
        for volume in files.volumes:
            found = {int(each.name[:16], 16) for each in Path(volume.root).glob("blocks/*/*")}
            assert found == {block for block, where in wanted if where == volume.id}


SETTINGS = settings(
    max_examples=50,
    stateful_step_count=40,
    derandomize=True,
    phases=(Phase.generate,),  # to make a failing life shorter would take longer than a test may
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.spec("F7", "F8", "B5")
def test_files_and_model_agree_whatever_happens_to_writers_and_volumes() -> None:
    run_state_machine_as_test(Life, settings=SETTINGS)
