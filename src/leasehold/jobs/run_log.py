"""The reservation log: what each holder of a job said of its run, and how that ended.

An entry is a term of the job's key: begun in the same atomic step as the reservation, ended in the
same step as the release. If its holder could say nothing any more, the reason that the store gives
for the end is the outcome: a crash is seen.

Which occurrences of a schedule were started and done: the fenced checkpoint of the job.

The checkpoint never goes back and is written under the job's epoch, so an occurrence that is done
stays done for all nodes, whatever their clocks say. Of each moment two steps are told apart: its
run was *started*, its run is *done*.
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

_MARK = "occurrence "
_SINCE = "nothing before "


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """How far a schedule was carried out.

    Attributes:
        done: all occurrences up to this moment are done, or were passed over.
        started: the occurrence whose run was started and is not known to be done.
    """

    done: datetime
    started: datetime | None = None


def born(at: datetime) -> Position:
    """The mark of a schedule that is new: what lies before ``at`` is nobody's business."""
    return Position(sequence_number=2 * _second(at) + 1, offset=_SINCE + _shown(at))


def started(occurrence: datetime) -> Position:
    """The mark of an occurrence whose run begins."""
    return Position(sequence_number=2 * _second(occurrence), offset=_MARK + _shown(occurrence))


def done(occurrence: datetime) -> Position:
    """The mark of an occurrence whose run is over, or which is passed over."""
    return Position(sequence_number=2 * _second(occurrence) + 1, offset=_MARK + _shown(occurrence))


def ran(checkpoint: Checkpoint | None) -> RunRecord | None:
    """Read the mark; None if the schedule is new.

    Raises:
        UsageError: the job has positions of its own, that no schedule has written.
    """
    if checkpoint is None:
        return None
    position = checkpoint.position
    if not position.offset.startswith((_MARK, _SINCE)):
        raise UsageError(
            f"{checkpoint.key} has a position of its own ({position.sequence_number}, "
            f"{position.offset[:40]!r}), so it can have no schedule: give the schedule a job of "
            "another name"
        )
    second, is_done = divmod(position.sequence_number, 2)
    moment = datetime.fromtimestamp(second, UTC)
    if is_done:
        return RunRecord(done=moment)
    # All before the one that was started had been settled when it was.
    return RunRecord(done=datetime.fromtimestamp(second - 1, UTC), started=moment)


def _second(moment: datetime) -> int:
    return int(moment.timestamp())


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


class Outcome(Enum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    LOST = "lost"  # the reservation: the work was stopped
    EXPIRED = "expired"  # without a word: its process died, or was paused for too long
    KILLED = "killed"  # it did not stop by itself
    BROKEN = "broken"  # by an operator
    HANDED_OVER = "handed_over"
    NO_RUN = "no_run"  # it was reserved, and there was nothing to run

    @property
    def stored(self) -> str:
        """The word that notes in a store keep for it."""
        return _STORED_OUTCOMES.get(self.value, self.value)

    @classmethod
    def _missing_(cls, value: object) -> Outcome | None:
        return next((each for each in cls if each.stored == value), None)


_STORED_OUTCOMES = {"handed_over": "handed over", "no_run": "nothing"}


_BY_REASON = {
    EndReason.RELEASED: Outcome.OK,
    EndReason.HANDED_OVER: Outcome.HANDED_OVER,
    EndReason.EXPIRED: Outcome.EXPIRED,
    EndReason.STOLEN: Outcome.LOST,
    EndReason.BROKEN: Outcome.BROKEN,
}


# What each part of a note is in JSON.
_KINDS: dict[str, type] = {
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
    """What a holder says of its run: the note of the term.

    Attributes:
        host: where it runs, and ``pid`` its process.
        occurrence: the scheduled moment that it is the run of; None: it was started by hand.
        attempt: 1 for the first try of this occurrence.
        schedule: the text of the schedule, so that two nodes with different ones are found.
        outcome: how the run ended, as far as its holder can tell; it counts once the term is over.
        exit_code: of the command, if it was one.
        words: the last progress, or the error. Cut if all together would be too long to keep.
    """

    host: str = ""
    pid: int = 0
    occurrence: datetime | None = None
    attempt: int = 1
    schedule: str = ""
    outcome: Outcome | None = None
    exit_code: int | None = None
    words: str = ""

    def note(self) -> str:
        """The text for the store; what is empty is left out."""
        text = self._text()
        if len(text) <= LONGEST_NOTE:
            return text
        # An escaped character can take twelve: halving always comes to an end.
        half = len(self.words) // 2
        if half:
            return replace(self, words=self.words[: half - 1] + "…").note()
        return replace(self, schedule="", words="", host=self.host[:64]).note()

    def _text(self) -> str:
        kept = {
            "host": self.host,
            "pid": self.pid,
            "occurrence": self.occurrence.astimezone(UTC).isoformat() if self.occurrence else "",
            "attempt": self.attempt if self.attempt != 1 else 0,
            "schedule": self.schedule,
            "outcome": self.outcome.stored if self.outcome else "",
            "exit_code": self.exit_code,
            "words": self.words,
        }
        told = {name: value for name, value in kept.items() if value not in ("", None)}
        shown = {name: value for name, value in told.items() if value != 0 or name == "exit_code"}
        return json.dumps(shown, separators=(",", ":"))

    @classmethod
    def of(cls, note: str) -> RunNote:
        """Read a note; one that is not ours is taken for words, and never an error."""
        try:
            found = json.loads(note) if note else {}
            if not isinstance(found, dict):
                return cls(words=note)
            known = {name: found[name] for name in _KINDS if name in found}
            if not all(isinstance(each, _KINDS[name]) for name, each in known.items()):
                return cls(words=note)
            if "occurrence" in known:
                known["occurrence"] = datetime.fromisoformat(known["occurrence"]).astimezone(UTC)
            if "outcome" in known:
                known["outcome"] = Outcome(known["outcome"])
            return cls(**known)
        except (ValueError, RecursionError, OverflowError):
            return cls(words=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One reservation of a job, from its start to its end."""

    epoch: int
    holder: str
    started_at: datetime
    ended_at: datetime | None
    outcome: Outcome | None
    said: RunNote
    timed_out: bool = False  # time ended it, at some moment that nobody saw

    @property
    def duration(self) -> timedelta | None:
        """How long it was held; None while it is, and where nobody knows.

        One that expired was over at some time before its end was seen, and nobody saw when.
        """
        if self.ended_at is None or self.timed_out:
            return None
        return self.ended_at - self.started_at

    @property
    def ran(self) -> bool:
        """Whether it was, or is, a run; not if its holder found nothing to do."""
        return self.outcome is not Outcome.NO_RUN

    @classmethod
    def of(cls, term: Term) -> RunEntry:
        """The entry that a term is."""
        said = RunNote.of(term.note)
        reason = None if term.reason is None else _BY_REASON.get(term.reason, Outcome.OK)
        timed_out = term.reason is EndReason.EXPIRED
        # What is stuck is ended with its process, which says so before: only time ends the term.
        killed = timed_out and said.outcome is Outcome.KILLED
        spoken = killed or term.reason in (EndReason.RELEASED, EndReason.HANDED_OVER)
        return cls(
            epoch=term.epoch,
            holder=term.holder,
            started_at=term.started_at,
            ended_at=term.ended_at,
            outcome=(said.outcome or reason) if spoken else reason,
            said=said,
            timed_out=timed_out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """One holder, and its reservations in a row, newest first: one line of the log (J3)."""

    holder: str
    entries: tuple[RunEntry, ...]


def entries(terms: Iterable[Term]) -> list[RunEntry]:
    """The reservations, in the order of the terms; what an operator reset is none."""
    return [RunEntry.of(term) for term in terms if term.reason is not EndReason.RESET]


def reservers(log: Sequence[RunEntry], *, most: int = 10) -> list[Streak]:
    """The last reservers, newest first; the same one in a row is one."""
    found: list[Streak] = []
    for entry in log:
        if found and found[-1].holder == entry.holder:
            found[-1] = replace(found[-1], entries=(*found[-1].entries, entry))
        elif len(found) == most:
            break
        else:
            found.append(Streak(holder=entry.holder, entries=(entry,)))
    return found
