"""One wish from waiting to the end, in an event loop: the lease, the claim, the renewals.

Rules, beside those of ``holding``:

1. A key is believed to be held only after the store agreed, and only while the lease is.
2. Belief ends before a release is sent.
3. One claim takes all keys in one step. Who got only some of them gives them back at once.
4. An occurrence is looked up after its key was seen free, and before the claim of what was seen.
   The claim succeeds only if nobody had the key between: so whoever has it knows the occurrence to
   be open, and no reservation is made, and logged, for a run that is done.
5. An occurrence is recorded only if it is due by the store's clock, which the start of the term
   shows: one from the future would count as done for every node, and silence all before it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from leasehold.core.lease_timing import CLOCK_RATE_ERROR
from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    LeaseLost,
    OccurrenceNotDue,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from leasehold.jobs import run_log as occurrences
from leasehold.jobs.holding import TRUST_OVER, Ground, Holding, new_identity
from leasehold.jobs.policy import OnCrash
from leasehold.jobs.run_log import Outcome, RunNote, log_entries
from leasehold.jobs.wish import GROUP, Done, Held
from leasehold.model import CheckpointWrite, HandOver, KeyClaim, Note, Ownership, Refusal, State
from leasehold.names import last_part

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.jobs.wish import Told, Wish
    from leasehold.model import Changes, Lease, Position, Resource
    from leasehold.ports import Store

T = TypeVar("T")

log = logging.getLogger("leasehold.jobs")

_SHORTEST_PAUSE_S = 0.02
_TERMS = 100  # of the log, to look for those who had an occurrence
_HELD = frozenset((State.LEASED, State.BREAKING))
# A run that ended in one of these ways is over; after any other the occurrence is still open.
_SETTLED = frozenset((Outcome.OK, Outcome.FAILED))
_HALF = "not all of the names could be had"
_NOT_DUE = "the occurrence is not due by the store's clock"
_MAX_EARLY = 0.25  # of the lease: how much too early an occurrence may be, as for workers
_MIN_SHOWN_SKEW = timedelta(seconds=1)
_UNHEARD = "it was never known to be reserved"
RELEASED = "released"
GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """How a reservation ends: for whom it is kept, if for anybody, and what the log is told."""

    to: str | None = None
    outcome: Outcome = Outcome.OK
    exit_code: int | None = None
    words: str = ""


class Claimant:
    """One holder with one wish. ``take``, then ``keep`` until it ends, then ``leave``.

    ``valid``, ``remaining_s`` and ``ended`` may be asked from any thread.
    """

    def __init__(
        self,
        store: Store,
        wish: Wish,
        *,
        told: Told,
        clock: Clock,
        rng: random.Random,
        identity: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        """Know nothing yet. ``identity`` gives the end of a new holder id, and a new token."""
        self.wish = wish
        self.ownerships: Mapping[str, Ownership] = {}
        self.note = RunNote(occurrence=wish.occurrence, schedule=wish.schedule)
        self._store = store
        self._told = told
        self._clock = clock
        self._rng = rng
        self._ground = Ground(
            store=store,
            name=wish.name,
            timing=wish.timing,
            grace_s=wish.grace_s,
            leave_s=wish.leave_s,
            clock=clock,
            rng=rng,
            identity=identity or new_identity,
        )
        self._holding = Holding(self._ground)
        self._granted_once = False
        self._in_doubt = False  # a claim was sent, and it may be ours without our knowing
        self._named: tuple[str, int, str] | None = None
        self._asked: object = self

    # ------------------------------------------------------------ from any thread

    @property
    def ended(self) -> str | None:
        """Why it is over; None while it is not."""
        return self._holding.ended

    @property
    def holder(self) -> str:
        """Who we are to the others."""
        return self._holding.holder

    @property
    def valid(self) -> bool:
        """Whether the keys may be acted upon at this very moment."""
        return bool(self.ownerships) and self._holding.believes

    def remaining_s(self) -> float:
        """How long it is until the work must have stopped, if no renewal succeeds any more."""
        if not self.ownerships or self.ended == RELEASED:
            return 0.0
        return self._holding.remaining_s()

    # ------------------------------------------------------------ waiting

    async def take(self, *, wait_s: float | None) -> Held | Done | None:
        """Hold all keys when this returns None; else say who has one, after ``wait_s`` seconds.

        That the run of an occurrence is over is said at once.

        Raises:
            StoreUnusable: at the first call. Later trouble is logged, and tried again.
            StoreUnavailable: there was no answer within ``wait_s``.
            UsageError: an occurrence is wanted of a job that has positions of its own.
            OccurrenceNotDue: it is in the future by the store's clock; nothing was recorded.
        """
        until_s = math.inf if wait_s is None else self._clock.boottime_s() + wait_s
        failures = 0
        while True:
            try:
                blocked = await self._look()
                if blocked is None or isinstance(blocked, Done):
                    return blocked
                if self._clock.boottime_s() >= until_s:
                    return await self._who(blocked)
            except (StoreError, LeaseLost) as error:
                never = isinstance(error, StoreUnusable) and not self._granted_once
                if never or self._clock.boottime_s() >= until_s:
                    raise
                failures += 1
                self._note_trouble(error, failures)
                pause_s = self._ground.pauses.pause_s(failures, self._rng)
            else:
                failures, pause_s = 0, self._pause_s()
            await self._clock.sleep(min(pause_s, until_s - self._clock.boottime_s()))

    async def _look(self) -> Resource | Done | None:
        """Claim all keys if they can be had; else return one that can not, or why there is no use.

        The view is that of a renewal which was sent just now.
        """
        lease = self._holding.lease or await self._join()
        await self._holding.renew()
        known = self._holding.view.resources
        if any(key not in known for key in self.wish.keys):  # forgotten by an operator
            await self._call("declare", self._store.declare(self.wish.keys))
            await self._holding.renew()
        wanted = [known[key] for key in self.wish.keys]
        blocked = [each for each in wanted if not _can_be_had(each, lease.holder)]
        # What is ours already was looked up before it was claimed: only the answer was lost.
        ours = wanted[0].holder == lease.holder
        done = None if ours else await self._done(is_free=not blocked)
        if blocked or done:
            mine = [_proof(each, lease) for each in wanted if each.holder == lease.holder]
        else:
            # What it is until more is known, also if nobody hears that it was reserved.
            note = replace(self.note, outcome=Outcome.NO_RUN).to_json()
            asked = [KeyClaim(key=each.key, seen_epoch=each.epoch, note=note) for each in wanted]
            self._in_doubt = True
            mine = list(await self._call("claim", self._store.claim(lease, asked)))
            if len(mine) == len(wanted):
                await self._open({each.key: each for each in mine})
                return None
            won = {each.key for each in mine}
            blocked = [each for each in wanted if each.key not in won]
        if mine:  # half of it is of no use, and somebody else may want it
            note = replace(self.note, outcome=Outcome.NO_RUN, words=_HALF).to_json()
            notes = {each.key: note for each in mine}
            await self._call("release", self._store.release(mine, notes=notes))
        self._in_doubt = False
        if done:
            return done
        await self._name_holder(blocked[0])
        return blocked[0]

    async def _join(self) -> Lease:
        lease = await self._holding.join(self.wish.keys)
        self._granted_once = True
        info = self._holding.info
        self.note = RunNote(
            host=info.host,
            pid=info.pid,
            occurrence=self.wish.occurrence,
            schedule=self.wish.schedule,
        )
        return lease

    async def _done(self, *, is_free: bool) -> Done | None:
        """Whether there is no use in running the occurrence; also finds out which attempt it is.

        One that was started and whose job ``is_free`` has crashed, unless all who had it say that
        they ran nothing; else it may be running now.
        """
        moment, key = self.wish.occurrence, self.wish.keys[0]
        if moment is None:
            return None
        found = await self._call("checkpoints", self._store.checkpoints(GROUP))
        ran = occurrences.read_progress(found.get(key))
        crashed = ran is not None and ran.started == moment and is_free
        over = ran is not None and ran.done >= moment
        if not (crashed or over):
            return None
        terms = await self._call("history", self._store.history(key, limit=_TERMS))
        noted = [each for each in log_entries(terms) if each.note.occurrence == moment]
        runs = [each for each in noted if each.ran]
        if not over and noted and not runs and len(terms) < _TERMS:
            return None  # whoever had it let go before anything was run, and said so
        if over or self.wish.on_crash is OnCrash.ABANDON:
            holder = runs[0].holder if runs else ""
            later = ran.done if ran is not None and ran.done > moment else None
            return Done(key=key, occurrence=moment, started=not over, holder=holder, later=later)
        others = [each for each in runs if each.holder != self._holding.holder]
        attempt = others[0].note.attempt + 1 if others else 2
        self.note = replace(self.note, attempt=attempt)
        return None

    async def _open(self, won: Mapping[str, Ownership]) -> None:
        first = won[self.wish.keys[0]]
        if self.wish.occurrence is not None:
            await self._refuse_early(won, self.wish.occurrence)
            mark = CheckpointWrite(
                ownership=first, position=occurrences.started_position(self.wish.occurrence)
            )
            if await self._call("checkpoint", self._store.checkpoint([mark])):
                raise LeaseLost("what was claimed is lost already", key=first.key, reason="fenced")
        if not self._holding.believes:
            raise LeaseLost("the answer to the claim came too late", reason=TRUST_OVER)
        self.ownerships = {key: won[key] for key in self.wish.keys}
        log.info("%s: %s reserved, epoch %d", first.holder, ", ".join(won), first.epoch)
        self._told.taken(self.ownerships)

    async def _refuse_early(self, won: Mapping[str, Ownership], moment: datetime) -> None:
        """Release the keys and raise if the occurrence is not due by the store's clock."""
        first = won[self.wish.keys[0]]
        terms = await self._call("history", self._store.history(first.key, limit=1))
        if not terms or terms[0].epoch != first.epoch:
            raise LeaseLost("what was claimed is lost already", key=first.key, reason="lost")
        store_time = terms[0].started_at
        if moment - store_time <= timedelta(seconds=self.wish.timing.lease_s * _MAX_EARLY):
            return
        skew = self._clock.utc_now() - store_time
        note = replace(self.note, outcome=Outcome.NO_RUN, words=_NOT_DUE).to_json()
        notes = dict.fromkeys(won, note)
        await self._call("release", self._store.release(list(won.values()), notes=notes))
        self._in_doubt = False
        raise OccurrenceNotDue(
            f"{not_due(last_part(first.key), moment, store_time, skew)}. Nothing was run, and "
            "nothing was recorded as done",
            occurrence=moment,
            store_time=store_time,
        )

    async def _name_holder(self, resource: Resource) -> None:
        """Say once who is waited for; if the store can not tell, at the next look."""
        this = (resource.key, resource.epoch, resource.holder or "")
        if this != self._named:
            held = await self._who(resource)
            self._named = this
            log.info("waiting: %s", held)
            self._told.waits(held)

    async def _who(self, resource: Resource) -> Held:
        members = await self._call("members", self._store.members(GROUP))
        terms = await self._call("history", self._store.history(resource.key, limit=1))
        holder = resource.holder or resource.handed_to or (terms[0].holder if terms else "somebody")
        peer = members.get(holder)
        kept = resource.holder is None and resource.handed_to is not None
        current = bool(terms) and terms[0].epoch == resource.epoch
        return Held(
            key=resource.key,
            holder=holder,
            host=peer.info.host if peer else "",
            pid=peer.info.pid if peer else 0,
            epoch=resource.epoch,
            since=None if kept or not current else terms[0].started_at,
            ends_in_s=peer.remaining_s if peer else 0.0,
            kept=kept,
        )

    def _pause_s(self) -> float:
        """Until the next look: soon, and sooner if somebody's lease ends before."""
        end_s = self._holding.next_end_s - self._clock.boottime_s() + _SHORTEST_PAUSE_S
        return min(self.wish.look_s, max(end_s, _SHORTEST_PAUSE_S))

    def _note_trouble(self, error: Exception, failures: int) -> None:
        if isinstance(error, LeaseLost):
            self._holding = Holding(self._ground)
        log.warning("waiting for %s: failure %d in a row: %s", self.wish.keys[0], failures, error)

    # ------------------------------------------------------------ holding

    async def keep(self) -> None:
        """Renew until the reservation is released or lost."""
        await self._holding.keep(hears=self)

    def release(self) -> None:
        """Believe no more; ``keep`` returns, and ``leave`` tells the store."""
        self._holding.end(RELEASED)

    def lose(self, reason: str, *, until_s: float | None = None) -> None:
        """Believe no more, and say so. The work must have stopped by ``until_s``, or now."""
        end_s = self._clock.boottime_s() if until_s is None else until_s
        if self._holding.end(reason, until_s=end_s):
            log.warning("%s is lost (%s): stop the work on it", ", ".join(self.ownerships), reason)
            self._told.lost(reason)

    def give_up(self) -> None:
        """Believe no more, and renew no more: the work must stop while trust still lasts."""
        self.lose(GIVEN_UP, until_s=math.inf)

    def renewed(self, holding: Holding, changes: Changes, sent_s: float, /) -> None:
        for term in changes.ended:
            mine = self.ownerships.get(term.key)
            if mine is not None and mine.epoch == term.epoch:
                self.lose(term.reason.value if term.reason else "lost")
        for resource in changes.resources:
            if resource.key not in self.ownerships:
                continue
            if resource.holder != holding.holder:
                self.lose("lost")
            elif resource.state is State.BREAKING and resource.breaking_s is not None:
                # Counted from the moment of asking, and short of a clock that runs slow.
                until_s = sent_s + resource.breaking_s * (1 - CLOCK_RATE_ERROR)
                self.lose("broken", until_s=until_s)
            elif resource.asked_by is not None:
                self._ask(resource.asked_by)
        if any(peer.holder == holding.holder and peer.leave_requested for peer in changes.members):
            self._ask(None)

    def lost(self, _holding: Holding, reason: str, until_s: float, /) -> None:
        self.lose(reason, until_s=until_s)

    def _ask(self, by: str | None) -> None:
        if by != self._asked:
            self._asked = by
            self._told.asked(by)

    async def leave(self, parting: Parting | None = None) -> None:
        """End the lease, so that others need not wait; call it when the work has stopped.

        If an occurrence was run to its end it is marked as done first. Then the log is told, in
        the same step in which the keys are released, or kept for another holder. If the store does
        not answer within ``leave_s`` of the wish, time ends it.

        After a ``take`` that failed, or was called off, what the store gave nevertheless is given
        back, and the log says that nothing was run.
        """
        if not self.ownerships:
            in_doubt = self._holding.lease if self._in_doubt else None
            await self._holding.leave(None if in_doubt is None else lambda: self._disown(in_doubt))
            return
        last = parting or Parting()
        await self._holding.leave(lambda: self._say_last(last))

    async def _disown(self, lease: Lease) -> None:
        seen = await self._say("resources", self._store.resources(GROUP))
        found = [seen[key] for key in self.wish.keys if key in seen]
        mine = [_proof(each, lease) for each in found if each.holder == lease.holder]
        if mine:
            note = replace(self.note, outcome=Outcome.NO_RUN, words=_UNHEARD).to_json()
            notes = {each.key: note for each in mine}
            await self._say("release", self._store.release(mine, notes=notes))

    async def _say_last(self, parting: Parting) -> None:
        note = replace(
            self.note,
            outcome=parting.outcome,
            exit_code=parting.exit_code,
            words=parting.words or self.note.words,
        ).to_json()
        proofs = list(self.ownerships.values())
        if self.wish.occurrence is not None and parting.outcome in _SETTLED:
            mark = CheckpointWrite(
                ownership=proofs[0], position=occurrences.done_position(self.wish.occurrence)
            )
            await self._say("checkpoint", self._store.checkpoint([mark]))
        if parting.to is not None:
            passed = [HandOver(ownership=each, to=parting.to, note=note) for each in proofs]
            limit = timedelta(seconds=self.wish.timing.lease_s)
            gone = await self._say("hand_over", self._store.hand_over(passed, limit=limit))
            proofs = [each for each in proofs if each.key not in gone]
        if proofs:
            notes = {each.key: note for each in proofs}
            await self._say("release", self._store.release(proofs, notes=notes))

    # ------------------------------------------------------------ words under the epoch

    async def mark(self, position: Position) -> None:
        """Store ``position`` as the job's checkpoint, under its epoch.

        Raises:
            LeaseLost: the reservation ended before there was an answer.
            FencedWrite: the store refused it: the reservation has ended. It is lost now.
            CheckpointBehind: what is stored is ahead; it stays.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
        """
        key = self.wish.keys[0]
        mark = CheckpointWrite(ownership=self.ownerships[key], position=position)
        refused = await self._fenced("checkpoint", self._store.checkpoint([mark]))
        if refused.get(key) is Refusal.FENCED:
            raise self._refused("checkpoint")
        if refused:
            raise CheckpointBehind(
                f"the checkpoint of {key} is ahead of {position.sequence_number}: it stays where "
                "it is; write positions in order"
            )

    async def progress(self, words: str) -> None:
        """Have the log say how far the run is.

        Raises:
            LeaseLost: the reservation ended before there was an answer.
            FencedWrite: the store refused it: the reservation has ended. It is lost now.
            StoreUnavailable: unknown whether it was stored; the same call may be repeated.
        """
        said = replace(self.note, words=words)
        note = Note(ownership=self.ownerships[self.wish.keys[0]], text=said.to_json())
        if await self._fenced("annotate", self._store.annotate([note])):
            raise self._refused("progress")
        self.note = said

    async def _fenced(self, name: str, answer: Awaitable[T]) -> T:
        key = self.wish.keys[0]
        try:
            return await self._call(name, answer)
        except StoreUnavailable as error:
            if self.valid:
                raise
            why = self.ended or TRUST_OVER
            raise LeaseLost(
                f"{key} was lost ({why}) before the store answered to its {name}",
                key=key,
                epoch=self.ownerships[key].epoch,
                reason=why,
            ) from error

    def _refused(self, what: str) -> FencedWrite:
        key = self.wish.keys[0]
        epoch = self.ownerships[key].epoch
        self.lose("fenced")
        return FencedWrite(
            f"the {what} of {key} was refused: the reservation (epoch {epoch}) has ended; "
            "stop the work on it",
            key=key,
            epoch=epoch,
            reason="fenced",
        )

    # ------------------------------------------------------------ the store

    async def _call(self, name: str, answer: Awaitable[T]) -> T:
        """One call to the store; while something is held never longer than belief lasts."""
        within_s = self._holding.belief_s() if self.ownerships else math.inf
        return await self._holding.call(name, answer, within_s=within_s)

    async def _say(self, name: str, answer: Awaitable[T]) -> T:
        """One call at the end, when belief is over."""
        return await self._holding.call(name, answer)


def not_due(job: str, moment: datetime, store_time: datetime, skew: timedelta) -> str:
    """Return the sentence for an occurrence in the store's future; ``skew``: of this clock."""
    if abs(skew) < _MIN_SHOWN_SKEW:
        clock = "and this machine's clock agrees: ask again when it is due"
    else:
        size = timedelta(seconds=round(abs(skew).total_seconds()))
        side = "ahead of" if skew > timedelta(0) else "behind"
        clock = f"and this machine's clock is {size} {side} it: set it right"
    return (
        f"the occurrence {moment:%Y-%m-%d %H:%M:%S} UTC of {job!r} is not due: the store's clock "
        f"shows {store_time:%Y-%m-%d %H:%M:%S} UTC, {clock}"
    )


def _can_be_had(resource: Resource, holder: str) -> bool:
    if resource.holder == holder:
        return True
    free = resource.holder is None or resource.state not in _HELD
    return free and resource.handed_to in (None, holder)


def _proof(resource: Resource, lease: Lease) -> Ownership:
    return Ownership(key=resource.key, epoch=resource.epoch, holder=lease.holder, token=lease.token)
