"""One transaction of the journal: what its steps read and write is batched.

Several steps may share one transaction. What they all need is read once and written once: the
counters of the namespace, and the lines of the history. Declared reads of several steps are one
query before they run, and rows that they add or end are written together. Each step sees exactly
what it would see if those before it had written immediately: ``tx`` writes everything that was
deferred, and drops everything that was prefetched.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseLost
from leasehold.files.model import NO_MARK, VolumeMark, ancestors, below, newer_volume

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from leasehold.files.model import FileHolder, FileLeaseLimits
    from leasehold.stores.blocking import Params, Tx, Value

    Rows = list[tuple[Any, ...]]

KEPT_LINES = 100_000
# Old lines are deleted in ranges of this size, by the primary key.
_PRUNE_EVERY = 1000


class JournalWork:
    """One transaction, as the steps see it."""

    def __init__(self, tx: Tx, limits: FileLeaseLimits) -> None:
        self._tx = tx
        self.limits = limits
        self.now = tx.now
        self.wall = tx.wall
        self._numbers: list[int] | None = None
        self._first_line = 0
        self._lines: list[Params] = []
        self._enlisted: dict[str, str] = {}
        self._deferred: dict[str, list[Params]] = {}
        self._holders_to_drop: set[str] = set()
        self._prefetched_paths: dict[str, Rows] = {}
        self._prefetched_files: dict[int, Rows] = {}
        self._added_paths: set[str] = set()

    @property
    def tx(self) -> Tx:
        """The transaction, after writing what was deferred and dropping what was prefetched."""
        self._write_deferred()
        self._prefetched_paths.clear()
        self._prefetched_files.clear()
        return self._tx

    # ------------------------------------------------------------- reads

    def prefetch(self, *, paths: Collection[str], file_ids: Collection[int]) -> None:
        """Read what is at these paths, and these files with their open blocks, in two queries."""
        if paths:
            self._prefetch_paths(paths)
        if file_ids:
            self._prefetched_files = {file_id: [] for file_id in file_ids}
            for row in self._tx.all("helds", ids=json.dumps(list(self._prefetched_files))):
                self._prefetched_files[row[0]].append(row)

    def _prefetch_paths(self, paths: Collection[str]) -> None:
        near = {path: [path, *ancestors(path)] for path in paths}
        every = {each for one in near.values() for each in one}
        lows = [below(path)[0] for path in near]
        rows = self._tx.all("looks", paths=as_json(every), lows=as_json(lows))
        self._prefetched_paths = {
            path: _rows_near(path, one, rows) if rows else [] for path, one in near.items()
        }

    def files_near(self, path: str) -> Rows:
        """Return the file at a path, files in place of its directories, and the first below it."""
        near = [path, *ancestors(path)]
        found = self._prefetched_paths.get(path)
        # A file that was added since is not in what was prefetched, whether above or below this
        # one.
        if found is not None and path not in self._added_paths and not self._is_below_added(near):
            return found
        low, high = below(path)
        return self.tx.all("look", paths=as_json(near), low=low, high=high)

    def _is_below_added(self, near: Iterable[str]) -> bool:
        return bool(self._added_paths) and any(f"{each}/" in self._added_paths for each in near)

    def held(self, file_id: int) -> Rows:
        """Return a file with its open block, one row for each volume."""
        found = self._prefetched_files.pop(file_id, None)  # once: the step is about to change it
        return self.tx.all("held", id=file_id) if found is None else found

    # ----------------------------------------------------------- changes

    def add_file(self, path: str, **values: Value) -> None:
        """Add a file at a path that was read before and is free."""
        # With a slash: the file itself, so that nothing comes below it. Without: a directory, or
        # the file again, so that no other file takes its place.
        self._added_paths.update((f"{path}/", path, *ancestors(path)))
        self.defer("file_add", path=path, **values)

    def defer(self, name: str, **values: Value) -> None:
        """Defer a statement, to be run with those of other steps before the next query."""
        self._deferred.setdefault(name, []).append(values)

    def _write_deferred(self) -> None:
        if self._deferred:
            waiting, self._deferred = self._deferred, {}
            for name, rows in waiting.items():
                self._tx.many(name, rows)
        while self._holders_to_drop:
            self._tx.run("holder_drop", id=self._holders_to_drop.pop())

    # ----------------------------------------------------------- numbers

    def draw_file_id(self) -> int:
        """Draw a new id for a file."""
        return self._draw(0)

    def draw_block_id(self) -> int:
        """Draw a new id for a block."""
        return self._draw(1)

    def draw_epoch(self) -> int:
        """Draw a new epoch, higher than all before it in this namespace."""
        return self._draw(2)

    def count_refusal(self) -> None:
        """Count a step that was refused to a holder whose lease has ended."""
        self._draw(4)

    def numbers(self) -> VolumeMark:
        """Return the highest block id and epoch that were drawn."""
        return VolumeMark(block=self._draw(1, 0), epoch=self._draw(2, 0))

    def raise_numbers(self, mark: VolumeMark) -> None:
        """Draw no block id and no epoch up to these."""
        known = self.numbers()
        self._draw(1, max(0, mark.block - known.block))
        self._draw(2, max(0, mark.epoch - known.epoch))

    def refuse_newer(self, mark: VolumeMark) -> None:
        """Refuse to write to volumes with this mark, if it is above all that was drawn."""
        if mark == NO_MARK:
            return
        known = self.numbers()
        if mark.is_above(known):
            raise newer_volume("a volume", mark, known)

    def _draw(self, which: int, count: int = 1) -> int:
        if self._numbers is None:
            self._numbers = list(self._tx.one("meta") or (0, 0, 0, 0, 0))
            self._first_line = self._numbers[3]
        self._numbers[which] += count
        return self._numbers[which]

    # ------------------------------------------------------------- lines

    def note(
        self, step: str, *, file_id: int, path: str, epoch: int, holder: str, detail: str = ""
    ) -> None:
        """Write one line of history."""
        self._lines.append(
            {
                "number": self._draw(3),
                "at": self.wall,
                "step": step,
                "file_id": file_id,
                "path": path,
                "epoch": epoch,
                "holder": holder,
                "detail": detail,
            }
        )

    def note_range(
        self, step: str, *, low: str, high: str, target: str, cut: int, count: int, detail: str = ""
    ) -> None:
        """Write one line for each of the ``count`` files of a range, with the path it will have."""
        self.tx.run(
            "lines_of_range",
            number=self._draw(3, count) - count,
            at=self.wall,
            step=step,
            low=low,
            high=high,
            target=target,
            cut=cut,
            detail=detail,
        )

    def flush_lines(self) -> None:
        """Write the collected lines, so that queries see them."""
        self._tx.many("line", self._lines)
        self._lines = []

    # ----------------------------------------------------------- holders

    def enlist(self, holder: FileHolder) -> None:
        """Register the holder, or renew its lease."""
        if self._enlisted.get(holder.id) == holder.token:
            return
        if holder.id in self._holders_to_drop:
            self._write_deferred()
        changed = self._tx.run(
            "holder_enlist",
            id=holder.id,
            token=holder.token_digest,
            host=holder.host,
            pid=holder.pid,
            address=holder.address,
            wall=self.wall,
            now=self.now,
        )
        if not changed:
            raise LeaseLost(
                f"the holder id {holder.id} is in use with another token: each incarnation of a "
                "client needs an id of its own",
                key=holder.id,
                reason="holder_id_in_use",
            )
        self._enlisted[holder.id] = holder.token

    def drop_idle(self, holder_id: str) -> None:
        """End the lease of a holder that has no file open; one that has keeps it."""
        self._enlisted.pop(holder_id, None)
        self._holders_to_drop.add(holder_id)

    # ----------------------------------------------------------- the end

    def finish(self) -> None:
        """Write what was collected."""
        self._write_deferred()
        if self._numbers is None:
            return
        file_id, block_id, epoch, line, refused = self._numbers
        self.flush_lines()
        if line // _PRUNE_EVERY != self._first_line // _PRUNE_EVERY and line > KEPT_LINES:
            self._tx.run("lines_prune", oldest=line - KEPT_LINES)
        self._tx.run(
            "meta_write",
            file_id=file_id,
            block_id=block_id,
            epoch=epoch,
            line=line,
            refused=refused,
        )


def _rows_near(path: str, near: Collection[str], rows: Rows) -> Rows:
    low, high = below(path)
    return [row for row in rows if row[1] in near or low <= row[1] < high]


def as_json(values: Iterable[str]) -> str:
    """Encode a list as the queries expect it."""
    return json.dumps(list(values))
