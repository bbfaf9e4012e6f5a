"""The journal's books during one transaction: numbers drawn in memory, lines written together.

Many steps may share one transaction. What they all need is read once and written once: the
counters of the namespace, and the lines of the history.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leasehold.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.files.model import Holder, Limits
    from leasehold.stores.blocking import Params, Tx

KEPT_LINES = 100_000
# Old lines go in ranges of this size: one statement in so many, and by the primary key.
_PRUNE_EVERY = 1000


class Books:
    """One transaction, as the steps see it."""

    def __init__(self, tx: Tx, limits: Limits) -> None:
        """Open them; nothing is read before it is needed."""
        self.tx = tx
        self.limits = limits
        self.now = tx.now
        self.wall = tx.wall
        self._numbers: list[int] | None = None
        self._first_line = 0
        self._lines: list[Params] = []
        self._enlisted: dict[str, str] = {}

    # ----------------------------------------------------------- numbers

    def draw_file_id(self) -> int:
        """A new id for a file."""
        return self._draw(0)

    def draw_block_id(self) -> int:
        """A new id for a block."""
        return self._draw(1)

    def draw_epoch(self) -> int:
        """A new epoch: higher than all before it in this namespace."""
        return self._draw(2)

    def count_refusal(self) -> None:
        """One more step was refused to somebody whose lease has ended."""
        self._draw(4)

    def _draw(self, which: int, count: int = 1) -> int:
        if self._numbers is None:
            self._numbers = list(self.tx.one("meta") or (0, 0, 0, 0, 0))
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
        """Write the lines so far, so that queries see them."""
        self.tx.many("line", self._lines)
        self._lines = []

    # ----------------------------------------------------------- holders

    def enlist(self, holder: Holder) -> None:
        """Put the holder into the books, or renew its lease.

        Raises:
            LeaseLost: another incarnation uses this id.
        """
        if self._enlisted.get(holder.id) == holder.token:
            return
        changed = self.tx.run(
            "holder_enlist",
            id=holder.id,
            token=holder.token,
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
                reason="another token is in use",
            )
        self._enlisted[holder.id] = holder.token

    def drop_idle(self, holder_id: str) -> None:
        """End the lease of a holder that has no file open; one that has keeps it."""
        self._enlisted.pop(holder_id, None)
        self.tx.run("holder_drop", id=holder_id)

    # ----------------------------------------------------------- the end

    def finish(self) -> None:
        """Write what was collected."""
        if self._numbers is None:
            return
        file_id, block_id, epoch, line, refused = self._numbers
        self.flush_lines()
        if line // _PRUNE_EVERY != self._first_line // _PRUNE_EVERY and line > KEPT_LINES:
            self.tx.run("lines_prune", oldest=line - KEPT_LINES)
        self.tx.run(
            "meta_write",
            file_id=file_id,
            block_id=block_id,
            epoch=epoch,
            line=line,
            refused=refused,
        )


def listed(values: Iterable[str]) -> str:
    """A list as the queries take it."""
    return json.dumps(list(values))
