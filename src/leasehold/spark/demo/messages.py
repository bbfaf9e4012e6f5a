"""What a driver of the demo says to the demo, one line of JSON each, and what it is told.

A driver says what it does; the screen believes only the store. The words serve to stop a driver at
one exact moment, and to quote the table when it refuses a commit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class Moment(StrEnum):
    """Where a driver can be made to wait."""

    STAGED = "staged"  # rows are written, nobody sees them, the commit is the next call
    COMMITTED = "committed"  # the table has them, the store has not heard of it


class Kind(StrEnum):
    """What is said."""

    READY = "ready"
    STAGED = "staged"
    COMMITTED = "committed"
    REFUSED = "refused"
    WAITS = "waits"  # at the moment that was asked for
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One line of a driver. ``rows``: events of the batch; ``epochs``: of its partitions."""

    kind: Kind
    rows: int = 0
    epochs: dict[str, int]
    words: str = ""

    def line(self) -> str:
        """As it goes through the pipe."""
        return json.dumps(asdict(self))


def heard(line: str) -> Said | None:
    """The line as a record; ``None`` for whatever else a program prints."""
    try:
        fields = json.loads(line)
        return Said(
            kind=Kind(fields["kind"]),
            rows=int(fields["rows"]),
            epochs={str(key): int(epoch) for key, epoch in fields["epochs"].items()},
            words=str(fields["words"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
