"""The log of a job's runs, and the progress of its schedule, as they are stored.

An entry of the log is a term of the job's key. It begins in the same atomic step as the reservation
and ends in the same step as the release; its note (``RunNote``) describes the run. If the holder
could not write the end, the reason that the store gives is the outcome, so a crash shows.

The progress of a schedule is the job's checkpoint, written under the job's epoch. It never moves
backwards, so an occurrence that is done stays done on all nodes, whatever their clocks show. For
each occurrence it distinguishes *started* and *done*.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.model import LONGEST_NOTE, EndReason, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.model import Checkpoint, Term

_OCCURRENCE = "occurrence "
_CREATED = "nothing before "


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProgress:
    """Which occurrences of a schedule have been handled.

    Attributes:
        done: all occurrences up to this time are done or were skipped.
        started: the occurrence whose run was started and is not known to be done.
    """

    done: datetime
    started: datetime | None = None


def created_position(at: datetime) -> Position:
    """Return the position of a new schedule: occurrences before ``at`` are never run."""
    return Position(sequence_number=2 * _second(at) + 1, offset=_CREATED + _iso(at))


def started_position(occurrence: datetime) -> Position:
    """Return the position for an occurrence whose run begins."""
    return Position(sequence_number=2 * _second(occurrence), offset=_OCCURRENCE + _iso(occurrence))


def done_position(occurrence: datetime) -> Position:
    """Return the position for an occurrence that is done or skipped."""
    return Position(
        sequence_number=2 * _second(occurrence) + 1, offset=_OCCURRENCE + _iso(occurrence)
    )


def read_progress(checkpoint: Checkpoint | None) -> ScheduleProgress | None:
    """Read the progress of a schedule; None if the schedule is new.

    Raises:
        UsageError: the checkpoint was not written by a schedule.
    """
    if checkpoint is None:
        return None
    position = checkpoint.position
    if not position.offset.startswith((_OCCURRENCE, _CREATED)):
        raise UsageError(
            f"{checkpoint.key} has a position of its own ({position.sequence_number}, "
            f"{position.offset[:40]!r}), so it can have no schedule: give the schedule a job of "
            "another name"
        )
    second, is_done = divmod(position.sequence_number, 2)
    moment = datetime.fromtimestamp(second, UTC)
    if is_done:
        return ScheduleProgress(done=moment)
    # All before the one that was started had been settled when it was.
    return ScheduleProgress(done=datetime.fromtimestamp(second - 1, UTC), started=moment)


def _second(moment: datetime) -> int:
    return int(moment.timestamp())


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


class Outcome(Enum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    LOST = "lost"  # the reservation was lost, and the work was stopped
    EXPIRED = "expired"  # its process crashed, or was paused for too long
    CRASHED = "crashed"  # its command was killed together with the guard
    KILLED = "killed"  # it did not stop when it was asked to
    BROKEN = "broken"  # by an operator
    HANDED_OVER = "handed_over"
    NO_RUN = "no_run"  # the job was reserved, and there was nothing to run

    @property
    def stored(self) -> str:
        """The word that notes in a store keep for it."""
        return _STORED_OUTCOMES.get(self.value, self.value)

    @classmethod
    def _missing_(cls, value: object) -> Outcome | None:
        return next((each for each in cls if each.stored == value), None)


_STORED_OUTCOMES = {"handed_over": "handed over", "no_run": "nothing"}


_OUTCOME_OF_REASON = {
    EndReason.RELEASED: Outcome.OK,
    EndReason.HANDED_OVER: Outcome.HANDED_OVER,
    EndReason.LAPSED: Outcome.LOST,
    EndReason.EXPIRED: Outcome.EXPIRED,
    EndReason.STOLEN: Outcome.LOST,
    EndReason.BROKEN: Outcome.BROKEN,
}

_BY_ITS_HOLDER = frozenset((EndReason.RELEASED, EndReason.HANDED_OVER, EndReason.LAPSED))


# The type of each field of a note in JSON.
_JSON_TYPES: dict[str, type] = {
    "host": str,
    "pid": int,
    "occurrence": str,
    "attempt": int,
    "schedule": str,
    "outcome": str,
    "exit_code": int,
    "words": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """How a holder describes its run: the note of the term.

    Attributes:
        host: the host that it runs on, and ``pid`` its process.
        occurrence: the scheduled time that it is the run of; None: it was started by hand.
        attempt: 1 for the first try of this occurrence.
        schedule: the text of the schedule, to detect two nodes with different ones.
        outcome: how the run ended, as its holder knows it; it counts once the term is over.
        exit_code: of the command, if the run was one.
        words: the last progress, or the error. Shortened if the note would be too long to store.
    """

    host: str = ""
    pid: int = 0
    occurrence: datetime | None = None
    attempt: int = 1
    schedule: str = ""
    outcome: Outcome | None = None
    exit_code: int | None = None
    words: str = ""

    def to_json(self) -> str:
        """Return the text for the store, without empty fields, shortened where it is too long."""
        text = self._to_long_json()
        if len(text) <= LONGEST_NOTE:
            return text
        # One character may take twelve bytes when it is escaped, so halving always ends.
        half = len(self.words) // 2
        if half:
            return replace(self, words=self.words[: half - 1] + "…").to_json()
        return replace(self, schedule="", words="", host=self.host[:64]).to_json()

    def _to_long_json(self) -> str:
        fields = {
            "host": self.host,
            "pid": self.pid,
            "occurrence": self.occurrence.astimezone(UTC).isoformat() if self.occurrence else "",
            "attempt": self.attempt if self.attempt != 1 else 0,
            "schedule": self.schedule,
            "outcome": self.outcome.stored if self.outcome else "",
            "exit_code": self.exit_code,
            "words": self.words,
        }
        given = {name: value for name, value in fields.items() if value not in ("", None)}
        shown = {name: value for name, value in given.items() if value != 0 or name == "exit_code"}
        return json.dumps(shown, separators=(",", ":"))

    @classmethod
    def of(cls, note: str) -> RunNote:
        """Read a note. Text that Leasehold did not write becomes ``words``, never an error."""
        try:
            found = json.loads(note) if note else {}
            if not isinstance(found, dict):
                return cls(words=note)
            known = {name: found[name] for name in _JSON_TYPES if name in found}
            if not all(isinstance(each, _JSON_TYPES[name]) for name, each in known.items()):
                return cls(words=note)
            if "occurrence" in known:
                known["occurrence"] = datetime.fromisoformat(known["occurrence"]).astimezone(UTC)
            if "outcome" in known:
                known["outcome"] = Outcome(known["outcome"])
            return cls(**known)
        except (ValueError, RecursionError, OverflowError):
            return cls(words=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogEntry:
    """One reservation of a job, from its start to its end."""

    epoch: int
    holder: str
    started_at: datetime
    ended_at: datetime | None
    outcome: Outcome | None
    note: RunNote
    timed_out: bool = False  # its lease expired, at a time that is not known

    @property
    def duration(self) -> timedelta | None:
        """How long it was held; None while it is held, and if it expired.

        A reservation that expired ended some time before the store noticed.
        """
        if self.ended_at is None or self.timed_out:
            return None
        return self.ended_at - self.started_at

    @property
    def ran(self) -> bool:
        """Whether it was, or is, a run; False if its holder found nothing to do."""
        return self.outcome is not Outcome.NO_RUN

    @classmethod
    def of(cls, term: Term) -> RunLogEntry:
        """Make the entry of a term."""
        note = RunNote.of(term.note)
        reason = None if term.reason is None else _OUTCOME_OF_REASON.get(term.reason, Outcome.OK)
        timed_out = term.reason is EndReason.EXPIRED
        # A stuck run is ended with its process, which writes that before: the term then expires.
        killed = timed_out and note.outcome is Outcome.KILLED
        from_holder = killed or term.reason in _BY_ITS_HOLDER
        return cls(
            epoch=term.epoch,
            holder=term.holder,
            started_at=term.started_at,
            ended_at=term.ended_at,
            outcome=(note.outcome or reason) if from_holder else reason,
            note=note,
            timed_out=timed_out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStreak:
    """Consecutive reservations of one holder, newest first: one line of the log (J3)."""

    holder: str
    entries: tuple[RunLogEntry, ...]


def log_entries(terms: Iterable[Term]) -> list[RunLogEntry]:
    """Return the reservations in the order of the terms; an operator's reset is not one."""
    return [RunLogEntry.of(term) for term in terms if term.reason is not EndReason.RESET]


def recent_holders(log: Sequence[RunLogEntry], *, max_holders: int = 10) -> list[HolderStreak]:
    """Return the last holders, newest first; consecutive reservations of one are merged."""
    found: list[HolderStreak] = []
    for entry in log:
        if found and found[-1].holder == entry.holder:
            found[-1] = replace(found[-1], entries=(*found[-1].entries, entry))
        elif len(found) == max_holders:
            break
        else:
            found.append(HolderStreak(holder=entry.holder, entries=(entry,)))
    return found
