"""The contracts. A store that passes ``leasehold.testing.contract`` keeps every one of them.

Guarantees of every method of ``Store``
---------------------------------------
1. **One atomic step**, judged by the store's clock alone. Nobody's wall clock is compared.
2. **An answer that never came** (``StoreUnavailable``) means *unknown*: the step may have been
   taken, now or a little later. Every method may therefore be called again with the same
   arguments, and the second call changes nothing that the first one did.
3. **A refusal changes nothing.** Not getting something is an answer, not an error.
4. **Epochs** rise by one at each change of owner and each reset, and never fall: not by release,
   not when a key is forgotten and declared again, not when the store restarts.
5. **A dead token stays dead**: a lease that has ended, by time, revocation or break, can not be
   renewed, and nothing can be claimed or written with it.
6. **Versions** order all changes of owners and members: what a watcher is told at version *v*
   includes everything that happened up to *v*.

Not guaranteed: that a holder which was robbed (``force=True``) or whose ownership was broken at
once has already stopped. It learns that at its next renewal. Only writes that carry the epoch to
a place that checks it are safe from such a holder; ``checkpoint`` is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from leasehold.model import (
        Changes,
        Checkpoint,
        CheckpointWrite,
        HandOver,
        KeyClaim,
        Lease,
        MemberInfo,
        MemberRecord,
        Note,
        Ownership,
        Position,
        Refusal,
        Resource,
        Term,
    )


class Store(Protocol):
    """Where leases, ownerships, checkpoints and their history live."""

    @property
    def url(self) -> str:
        """What to show people: the store's URL without its secrets."""
        ...

    async def declare(self, keys: Sequence[str]) -> int:
        """Make each key known, free, unless it is already; return how many were new.

        Ten hosts declaring the same keys at once is harmless. A key that was forgotten comes
        back with the epoch it had.

        Raises:
            InvalidName: one of them is no key; then none is declared.
        """
        ...

    async def forget(self, keys: Sequence[str]) -> int:
        """Stop sharing out those of the keys that are free; return how many. Epochs are kept."""
        ...

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """Give ``holder`` a lease and make it a member of ``group`` (may be empty: of none).

        ``token`` is the caller's own secret, so that a repeated call is the same grant.

        Raises:
            InvalidDuration: outside the store's range, which the message names.
            LeaseLost: this holder's lease has ended, or another token is in use: a new
                incarnation needs a new holder id.
        """
        ...

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """Extend the lease by its duration from now, and tell what changed since ``since``.

        One round trip and one write, whatever the holder owns. Watches the lease's group: in a
        quiet group the answer is empty. Leases in the group that ran out, breaks that fell due
        and hand-overs whose time is over are ended in the same step, so that every watcher
        learns of them. ``info`` replaces what the others know of this member.

        The answer also says when there will next be something to end (``next_end_s``), so that a
        watcher can look right then: the first end among the leases of the other members, of
        outsiders that own or owned a key of the group, and of those a key is kept for, the breaks,
        and the limits of the hand-overs. The caller's own lease does not count. Never negative;
        None without a group, or if there is nothing of that kind.

        Raises:
            LeaseLost: the lease has ended, with the reason; nothing was extended.
        """
        ...

    async def revoke(self, lease: Lease) -> None:
        """End the lease and release all that it covers. Ending an ended lease is no error."""
        ...

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """Take those of the wanted keys that can be had; return only these.

        A key is had if its epoch is still ``seen_epoch`` and it is available, broken or expired,
        and not kept for somebody else by a hand-over. The epoch rises by one. ``force`` also
        takes keys that are leased or breaking: the steal; its owner learns at its next renewal.
        The term begins with the note that is wanted. A key this lease already took from that very
        epoch is returned again, and its note left as it is.

        Raises:
            LeaseLost: the lease has ended; nothing was taken.
        """
        ...

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """Ask the owner to hand the key over to this holder; say whether the question stands.

        The owner finds the question in its next renewal. It ends with the owner's term, or when
        somebody else asks.

        Raises:
            LeaseLost: the asker's own lease has ended.
        """
        ...

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """End each ownership and keep its key for one holder; return the keys that were passed.

        The key is kept until that holder claims it, its lease ends, or ``limit`` is over: then it
        is available to all. A key that is kept for the caller and was not claimed yet may be
        passed on in the same way. Handing over again what was handed over is counted as passed.

        A term that this call ends has the note of its hand-over from then on, unless that is None.
        One that has ended before, or never was the caller's, keeps the note that it has.
        """
        ...

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Make each key available at once; return those whose ownership is over in this way.

        That is: by this call, by an earlier one, or because time was faster (then the history
        says so). Names the epoch it means: an ownership that has moved on is not touched.

        A term that this call ends has the note that ``notes`` gives for its key, in the same step.
        One that has ended otherwise, by time too, keeps the note that it has.

        Raises:
            UsageError: a note is of no key that is to be released, or can not be kept; then
                nothing is released.
        """
        ...

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """End the ownership ``epoch`` of ``key`` for its holder, at once or after a while.

        A second break can only shorten the time. With ``after`` of at least the holder's lease
        duration the holder has stopped before anybody else is let in; with less it may not have.
        Returns the resource as it is now, or None if that epoch is not held.

        Raises:
            UnknownResource: there is no such key.
        """
        ...

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Write each position under its ownership; return the refused ones with the reason.

        ``FENCED``: the ownership has ended or a newer epoch exists. ``BEHIND``: the stored
        position is ahead. The same position again is no refusal. Fenced writes are counted.
        """
        ...

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """Replace the note of each term, which its ownership proves; return the refused keys.

        Refused is what ``checkpoint`` calls ``FENCED``, and it is counted in the same way: the
        ownership has ended or a newer epoch exists. Of several notes of one term the last to
        arrive stands. No watcher is told: the note is found in the history.
        """
        ...

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """Ask the owner of ``key`` in ``epoch`` to hand it over to ``to``; say whether that stands.

        For operators, who have no lease. The owner finds it in its next renewal, exactly as after
        ``ask``: ``asked_by`` is ``to``. It does not stand if that epoch is not held, if ``to`` is
        the owner itself, or if it is no living member of the key's group, or one that is draining
        or was dismissed.

        Raises:
            InvalidName: ``key`` is no key, or ``to`` no name of a holder.
            UsageError: ``epoch`` is no epoch.
        """
        ...

    async def request_leave(self, holder: str) -> bool:
        """Ask a member to leave in good order; False if there is no such living member.

        For operators. It finds its own ``MemberRecord`` with ``leave_requested`` in its next
        renewal, and so do all others. That lasts as long as its lease. Nothing is taken from it:
        what it does about it is up to the member. A holder of no group is no member: it would never
        hear of it.

        Raises:
            InvalidName: that is no name of a holder.
        """
        ...

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """Put checkpoints anywhere, also back; None removes one. All of them, or none.

        For operators, and only for keys that nobody owns, by the store's clock. Returns the keys
        that are owned, with their holder; if there is one, nothing is changed. A key that is kept
        for a receiver counts as owned by it for as long as that lasts.

        Each epoch rises by one, so no write of a former owner and no claim that is under way
        comes through any more. The history gets a term of that epoch, begun and ended now, with
        the holder ``operator`` and the reason ``RESET``. A key that was reset to this very
        position, and that nobody has owned since, is left as it is: the call is a repetition.

        Raises:
            UnknownResource: one of the keys is not declared, or is forgotten.
            InvalidName: one of the keys is no key.
            UsageError: one of the positions is none, or is too big or too odd to be kept.
        """
        ...

    async def groups(self) -> Sequence[str]:
        """All groups that have keys which are shared out, sorted. Reads only."""
        ...

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """All checkpoints of a group, by key."""
        ...

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """All keys of a group as they are now, by key. Reads only."""
        ...

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """All members of a group whose lease has not ended, by holder. Reads only."""
        ...

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """The last terms of a key with their notes, newest first.

        A store keeps at least the last 100.
        """
        ...

    async def fenced_writes(self, group: str) -> int:
        """How many writes to the keys of this group were refused for an old epoch, ever."""
        ...

    async def close(self) -> None:
        """Give back connections. Leases are left as they are: revoke what should end."""
        ...


@runtime_checkable
class LeaseRange(Protocol):
    """A store with narrower limits than others for a lease may have this beside ``Store``."""

    def check_lease(self, duration: timedelta) -> None:
        """Return if such a lease can be had. Asks nobody.

        Raises:
            InvalidDuration: it can not; the message names what can.
        """
        ...


class KeyHandler(Protocol):
    """Does the work on what a member owns. All methods return at once.

    The member tells its keeper about every change exactly once: ``opened``, then at the end
    either ``closed`` (the ownership is gone, the work must have stopped) or first ``drain`` (stop
    in good order) and, after the keeper called ``Member.drained``, ``closed``.
    """

    def opened(self, ownership: Ownership) -> None:
        """The key is ours: begin."""
        ...

    def drain(self, ownership: Ownership) -> bool:
        """Stop in good order; True if it has stopped, else ``Member.drained`` is called later."""
        ...

    def closed(self, ownership: Ownership, reason: str) -> None:
        """The key is not ours any more: whatever still runs must end now."""
        ...
