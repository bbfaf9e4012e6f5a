"""The invariants of files, checked at every commit, acknowledgement and read of a simulation.

``FileChecks`` has its own memory of every file: who wrote which bytes, what was acknowledged, and
which replicas were destroyed, by what.

* What was acknowledged is in the file, byte for byte and in order, as long as one replica of each
  block is sound and its volume answers. ``sync`` and ``close`` survive a power cut, ``flush`` the
  end of every process.
* A loss is known to the journal and to ``verify``, from the commit that makes it on.
* Bytes of a former writer are never in the file after its end, and nothing is acknowledged to it
  that the file does not have.
* A reader sees no byte that was not offered to be acknowledged, and its length never goes back.
* Epochs rise. A recovered block has the epoch of its recovery.
* A volume leaves a block only if it failed, or its replica was destroyed.
* ``verify`` reports every destroyed replica and no sound one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.testing.sim.bad_volumes import Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leasehold.files.verify import Fault
    from leasehold.testing.sim.bad_volumes import SimVolume
    from leasehold.testing.sim.blocking_process import SimDatabase, SimProcess

ALL_BLOCKS = 0  # in the place of a block: the whole volume is another one
_FILES = "SELECT id, path, state, epoch, length, recovered FROM fs_file ORDER BY id"
_BLOCKS = (
    "SELECT b.file_id, b.id, b.state, b.start, b.length, b.generation, r.volume_id,"
    " r.copy_epoch"
    " FROM fs_block b JOIN fs_replica r ON r.block_id = b.id ORDER BY b.id, r.volume_id"
)
_NUMBERS = "SELECT last_block_id, last_epoch FROM fs_meta"


@dataclass(slots=True, eq=False)
class KnownBlock:
    """A block as the journal has it, and the step at which each process learned of it."""

    id: int
    file_id: int
    state: str
    start: int
    length: int
    generation: int
    copies: dict[str, int] = field(default_factory=dict)  # by volume: the epoch of the copy
    begun_by: str = ""
    begun_at: int = 0

    @property
    def volumes(self) -> tuple[str, ...]:
        """Where it is."""
        return tuple(self.copies)


@dataclass(slots=True, eq=False)
class WriterTerm:
    """What one writer has done with a file: its bytes begin at ``start``.

    ``data`` is all that ``write`` was given, ``handed`` the end of what it took, ``offered`` the
    end of what readers may see. ``end``: where its bytes end for good; None
    while that is open.
    """

    epoch: int
    start: int
    data: bytearray = field(default_factory=bytearray)
    handed: int = 0
    offered: int = 0
    end: int | None = None

    @property
    def attempted(self) -> int:
        """The end of all that may be there."""
        return self.start + len(self.data)


@dataclass(slots=True, eq=False)
class KnownFile:
    """What is known of a file. ``flushed`` and ``synced`` are the lengths that were promised."""

    id: int
    path: str
    state: str
    epoch: int
    length: int
    terms: list[WriterTerm]
    flushed: int = 0
    synced: int = 0
    recovered: int = 0
    lost: list[int] = field(default_factory=list)
    reboots: int = 0

    def content(self, end: int) -> bytes:
        """Return the first bytes, as they were written."""
        parts = []
        for number, term in enumerate(self.terms):
            last = self.terms[number + 1].start if number + 1 < len(self.terms) else end
            parts.append(bytes(term.data[: last - term.start]))
        return b"".join(parts)[:end]

    def term(self, epoch: int) -> WriterTerm | None:
        """Return what the writer of an epoch has done."""
        return next((term for term in self.terms if term.epoch == epoch), None)


class FileChecks:
    """Watches a simulated world from outside. What it finds is recorded, not raised."""

    def __init__(self, database: SimDatabase, trace: Callable[[str], None]) -> None:
        self._trace = trace
        self.broken: list[str] = []
        self.files: dict[int, KnownFile] = {}
        self.blocks: dict[int, KnownBlock] = {}
        self.damage: dict[tuple[int, str], set[Damage]] = {}
        self._flips: Counter[tuple[int, str]] = Counter()
        self.acknowledged_bytes = self.recoveries = self.losses = self.copied = 0
        self.reboots = 0
        self.is_recovering: dict[str, Mapping[str, int]] = {}
        self._database = database
        self._last_epoch = self._last_block = 0

    def found(self, what: str) -> None:
        """Record that an invariant is broken."""
        self._trace(f"!! {what}")
        self.broken.append(what)

    # ---------------------------------------------------------------- what was destroyed

    def on_damage(self, volume: str, block: int, kind: Damage) -> None:
        """Record that a replica was destroyed, or what of it was not durable."""
        self.damage.setdefault((block, volume), set()).add(kind)
        self._flips[block, volume] += kind is Damage.FLIPPED

    def become(self, volume: SimVolume, contents: Mapping[str, Mapping[str, bytes]]) -> None:
        """Let a volume come back with other contents; without an identity it is unusable."""
        volume.become(contents)
        self.damage.pop((ALL_BLOCKS, volume.name), None)
        if "VOLUME" not in contents[volume.root]:
            self.on_damage(volume.name, ALL_BLOCKS, Damage.GONE)

    def restarted(self) -> None:
        """Record a power cut: only what is durable was promised."""
        self.reboots += 1
        for file in self.files.values():
            file.flushed = file.synced

    def kinds(self, block: int, volume: str) -> set[Damage]:
        """Return what has happened to a replica."""
        return self.damage.get((block, volume), set()) | self.damage.get(
            (ALL_BLOCKS, volume), set()
        )

    def is_sound(self, block: int, volume: str, *, durable: bool) -> bool:
        """Return whether a replica has what was acknowledged, or what of that was durable."""
        kinds = self.kinds(block, volume)
        return not (kinds - {Damage.CACHED} if durable else kinds)

    def _may_be_lost(self, block: KnownBlock, troubled: Iterable[str], *, durable: bool) -> bool:
        """Return whether no replica of a block could be read that has what was acknowledged.

        A copy of earlier contents looks sound. If it is the only one that answers, its word counts.
        """
        silent = set(troubled)
        sound = {each for each in block.volumes if self.is_sound(block.id, each, durable=durable)}
        old = any(Damage.OLD in self.kinds(block.id, each) for each in block.volumes)
        return not sound or (old and sound <= silent)

    # ------------------------------------------------------------------- commits

    def committed(self, process: SimProcess, step: str) -> None:
        """Compare the journal with what is known, after a step of a process."""
        ((last_block, last_epoch),) = self._database.rows(_NUMBERS)
        if last_epoch < self._last_epoch or last_block < self._last_block:
            self.found(f"the epoch went back from {self._last_epoch} to {last_epoch}")
        before, self.blocks = self.blocks, self._read_blocks(process)
        rows = {row[0]: row for row in self._database.rows(_FILES)}
        for id_ in [each for each in self.files if each not in rows]:
            del self.files[id_]
        for id_, path, state, epoch, length, recovered in rows.values():
            known = self.files.get(id_)
            if known is None:
                self._check_new_epoch(path, epoch)
                term = WriterTerm(epoch=epoch, start=0)
                self.files[id_] = KnownFile(id_, path, state, epoch, length, [term])
                self.files[id_].reboots = self.reboots
                continue
            known.path = path
            self._file_changed(process, known, state, epoch, length, recovered, before)
        self._last_epoch = max(last_epoch, *(file.epoch for file in self.files.values()), 0)
        self._last_block = last_block
        self._check_volumes(process, step, before)

    def _read_blocks(self, process: SimProcess) -> dict[int, KnownBlock]:
        found: dict[int, KnownBlock] = {}
        for row in self._database.rows(_BLOCKS):
            file_id, id_, state, start, length, generation, volume, copy_epoch = row
            old = self.blocks.get(id_)
            if id_ not in found:
                found[id_] = KnownBlock(id_, file_id, state, start, length, generation)
                found[id_].begun_by = process.name if old is None else old.begun_by
                found[id_].begun_at = process.steps if old is None else old.begun_at
            found[id_].copies[volume] = copy_epoch
            if old is not None and copy_epoch > old.copies.get(volume, 0):
                self.damage.pop((id_, volume), None)  # another replica, made from sound ones
                self.copied += 1
        return found

    def _check_new_epoch(self, path: str, epoch: int) -> None:
        if epoch <= self._last_epoch:
            self.found(f"{path} was opened under epoch {epoch}, and {self._last_epoch} was used")

    def _file_changed(
        self,
        process: SimProcess,
        file: KnownFile,
        state: str,
        epoch: int,
        length: int,
        recovered: int,
        before: Mapping[int, KnownBlock],
    ) -> None:
        if epoch < file.epoch:
            self.found(f"{file.path} went back from epoch {file.epoch} to {epoch}")
        if epoch != file.epoch:
            self._check_new_epoch(file.path, epoch)
        if length < file.length:
            self.found(f"{file.path} had {file.length} bytes in the journal and has {length}")
        opened = state == "open" and file.state == "closed"
        ended = state == "closed" and file.state != "closed"
        if ended and recovered != file.recovered:
            self.recoveries += 1
            self._recovered(process, file, length, recovered, before)
        elif ended or length > file.length:
            self._sealed(file, length, ended=ended)
        if opened:
            file.terms.append(WriterTerm(epoch=epoch, start=length))
            file.reboots = self.reboots
        for block in self.blocks.values():
            if block.file_id == file.id and block.state == "complete":
                for volume in block.volumes:  # now it is durable
                    self.damage.get((block.id, volume), set()).discard(Damage.CACHED)
        file.state, file.epoch, file.length, file.recovered = state, epoch, length, recovered
        # What is complete is durable, whoever learns of it.
        file.synced = max(file.synced, length)
        file.flushed = max(file.flushed, length)

    def _sealed(self, file: KnownFile, length: int, *, ended: bool) -> None:
        term = file.terms[-1]
        if length < file.flushed and ended:
            self.found(
                f"{file.path} was closed at {length} bytes, {file.flushed} were acknowledged"
            )
        if length > term.attempted:
            self.found(f"{file.path} has {length} bytes, {term.attempted} were written")
        if ended:
            term.end = length

    def _recovered(
        self,
        process: SimProcess,
        file: KnownFile,
        length: int,
        recovered: int,
        before: Mapping[int, KnownBlock],
    ) -> None:
        term = file.terms[-1]
        block = next(
            (each for each in before.values() if each.file_id == file.id and each.state == "open"),
            None,
        )
        if length > term.attempted:
            self.found(f"{file.path} has {length} bytes, {term.attempted} were written")
        after = self.blocks.get(block.id) if block else None
        if after is not None and after.generation != recovered:
            self.found(
                f"{file.path} was recovered under epoch {recovered}, and its block has generation "
                f"{after.generation}"
            )
        if block is not None and length < file.flushed:
            self._shortened(process, file, block, length)
        file.flushed, file.synced = min(file.flushed, length), min(file.synced, length)
        term.end = length

    def _shortened(
        self, process: SimProcess, file: KnownFile, block: KnownBlock, length: int
    ) -> None:
        durable = length < file.synced
        promised = file.synced if durable else file.flushed
        since = self.is_recovering.get(process.name, {})
        troubled = [each for each, at in process.troubles.items() if at > since.get(file.path, 0)]
        if not self._may_be_lost(block, troubled, durable=durable):
            sound = [
                each for each in block.volumes if self.is_sound(block.id, each, durable=durable)
            ]
            self.found(
                f"{file.path} was recovered at {length} bytes, {promised} were acknowledged"
                f"{' and durable' if durable else ''}, and {', '.join(sound)} has them"
            )
        self.losses += 1
        file.lost.append(length)
        kinds = set().union(*(self.kinds(block.id, v) for v in block.volumes))
        once = all(self._flips[block.id, each] <= 1 for each in block.volumes)
        known = self._database.rows(
            f"SELECT bytes FROM fs_loss WHERE file_id = {file.id} AND start = {length}"  # noqa: S608
        )
        # Only a copy that keeps its own records can know what it has lost.
        can_tell = durable or (file.reboots == self.reboots and Damage.CACHED not in kinds)
        if can_tell and once and kinds <= {Damage.FLIPPED, Damage.CACHED} and not known:
            self.found(
                f"{file.path}: {promised - length} acknowledged bytes after {length} are lost, and "
                "the journal does not know"
            )

    def _check_volumes(
        self, process: SimProcess, step: str, before: Mapping[int, KnownBlock]
    ) -> None:
        """No volume leaves a block that did not fail."""
        for block in self.blocks.values():
            old = before.get(block.id)
            if old is None:
                continue
            for volume in set(old.volumes) - set(block.volumes):
                since = block.begun_at if block.begun_by == process.name else 0
                failed = process.troubles.get(volume, -1) >= since
                if not failed and not self.kinds(block.id, volume):
                    self.found(
                        f"the healthy volume {volume} was dropped from block {block.id:#x} ({step})"
                    )

    # ---------------------------------------------------------------- writers

    def writing(self, file_id: int, epoch: int) -> WriterTerm | None:
        """Return where the bytes of a writer are kept; None if its file is gone."""
        file = self.files.get(file_id)
        return None if file is None else file.term(epoch)

    def offered(self, block: int, length: int) -> None:
        """Record that readers may see this much of a block from now on."""
        known = self.blocks.get(block)
        file = None if known is None else self.files.get(known.file_id)
        term = None if file is None or known is None else file.term(known.generation)
        if known is not None and term is not None:
            term.offered = max(term.offered, known.start + length)

    def acknowledged(self, file_id: int, epoch: int, length: int, *, durable: bool) -> None:
        """Check what a writer was told: its bytes up to ``length`` are in the file."""
        file = self.files.get(file_id)
        term = file.term(epoch) if file is not None else None
        if file is None or term is None:
            return  # deleted or replaced
        if term.end is not None:
            if length > term.end:
                self.found(
                    f"{file.path}: {length} bytes were acknowledged to the former writer of epoch "
                    f"{epoch}, and the file has {term.end} of them"
                )
            return
        if length != max(term.handed, term.start):
            self.found(f"{file.path}: {length} bytes acknowledged of {term.handed} written")
        self.acknowledged_bytes += max(0, length - file.flushed)
        file.flushed = max(file.flushed, length)
        if durable:
            file.synced = max(file.synced, length)

    # ----------------------------------------------------------------- readers

    def read(
        self, process: SimProcess, file_id: int, data: bytes, *, least: int, since: int
    ) -> None:
        """Check what a reader saw; ``least`` was promised before it began, at step ``since``."""
        file = self.files.get(file_id)
        if file is None:
            return
        term = file.terms[-1]
        wanted = file.content(len(data))
        if wanted != data:
            at = next(
                (n for n, (a, b) in enumerate(zip(wanted, data, strict=False)) if a != b),
                min(len(wanted), len(data)),
            )
            self.found(f"{file.path}: a reader sees wrong bytes from {at} on")
            return
        if term.end is None and len(data) > max(term.offered, term.start, file.length):
            open_block = self._open_block(file)
            untouched = open_block is not None and not any(
                self.damage.get((open_block.id, each)) for each in open_block.volumes
            )
            if file.reboots == self.reboots and untouched:
                self.found(
                    f"{file.path}: a reader sees {len(data)} bytes, and {term.offered} were "
                    "acknowledged"
                )
        least = min(least, file.flushed)
        if len(data) < least and not self.excuses(process, file, since, open_only=True):
            self.found(f"{file.path}: a reader sees {len(data)} bytes of {least} acknowledged")
        file.flushed = max(file.flushed, len(data))  # what was seen once stays

    def unreadable(
        self, process: SimProcess, file_id: int, error: Exception, *, since: int
    ) -> None:
        """Check that a file that cannot be read has a block without a sound replica."""
        file = self.files.get(file_id)
        if file is not None and not self.excuses(process, file, since):
            self.found(f"{file.path} can not be read, and each block has a sound replica: {error}")

    def excuses(
        self, process: SimProcess, file: KnownFile, since: int, *, open_only: bool = False
    ) -> bool:
        """Return whether some acknowledged byte is on no volume that is sound and answered."""
        for block in self.blocks.values():
            if block.file_id != file.id or (open_only and block.state != "open"):
                continue
            good = [
                each
                for each in block.volumes
                if self.is_sound(block.id, each, durable=False)
                and process.troubles.get(each, -1) < since
            ]
            stale = any(Damage.OLD in self.kinds(block.id, each) for each in block.volumes)
            if not good or (block.state == "open" and stale):
                return True
            if (
                block.state == "open"
                and file.flushed <= block.start
                and set(block.volumes) > set(good)
            ):
                return True  # it may not have been begun where the others are
            if (
                block.state == "open"
                and file.reboots < self.reboots
                and set(block.volumes) > set(good)
            ):
                return True  # of what is not known to be durable, the silent ones may have less
        return False

    def must_recover(self, file: KnownFile) -> bool:
        """Return whether the end of a file is sound on a volume that answers.

        After a power cut a copy may know that there was more. Then a volume that is gone is waited
        for: it may have that.
        """
        block = self._open_block(file)
        if block is None or block.start >= file.synced:
            return False
        is_gone = any((ALL_BLOCKS, each) in self.damage for each in block.volumes)
        if is_gone and file.reboots < self.reboots:
            return False
        return any(self.is_sound(block.id, each, durable=True) for each in block.volumes)

    def _open_block(self, file: KnownFile) -> KnownBlock | None:
        found = (each for each in self.blocks.values() if each.file_id == file.id)
        return next((each for each in found if each.state == "open"), None)

    # ----------------------------------------------------------------- the end

    def verified(
        self, file: KnownFile, faults: Iterable[Fault], wrong: set[tuple[int, str]]
    ) -> None:
        """Check a report of ``verify``: ``wrong`` are the replicas whose bytes are not right."""
        listed = list(faults)
        blocks = [each for each in self.blocks.values() if each.file_id == file.id]
        for block in blocks:
            for volume in block.volumes:
                reported = any(
                    fault.volume == volume and f"{block.id:#x} " in f"{fault.what} "
                    for fault in listed
                )
                if (block.id, volume) in wrong and not reported:
                    self.found(
                        f"{file.path}: verify does not report block {block.id:#x} on {volume}"
                    )
                if reported and not self.kinds(block.id, volume):
                    what = next(each.what for each in listed if each.volume == volume)
                    self.found(f"{file.path}: verify reports a sound replica on {volume}: {what}")
        losses = [each for each in listed if "acknowledged bytes" in each.what]
        known = self._database.rows(
            f"SELECT start FROM fs_loss WHERE file_id = {file.id}"  # noqa: S608
        )
        if len(losses) < len(known):
            self.found(f"{file.path}: a loss is not reported by verify")
