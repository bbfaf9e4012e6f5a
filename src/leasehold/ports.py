"""The contract of a store. ``leasehold.testing.contract`` tests all of it.

Guarantees of every method of ``Store``
---------------------------------------
1. **One atomic step**, by the store's clock alone. No wall clock is compared.
2. **A missing answer** (``StoreUnavailable``) means *unknown*: the step may have been taken, or may
   be taken a little later. Every method may therefore be called again with the same arguments; the
   second call changes nothing that the first one did.
3. **A refusal changes nothing.** A key that cannot be claimed is an answer, not an error.
4. **Epochs** rise by one at each change of owner and each reset, and never decrease: not by
   release, not when a key is forgotten and declared again, not when the store restarts.
5. **An ended lease stays ended**: after its expiry, revocation or break it cannot be renewed, and
   nothing can be claimed or written with it.
6. **Versions** order all changes of owners and members: an answer at version *v* includes
   everything that happened up to *v*.
7. **One process**: a store serves the process that opened it. In a child that was forked since,
   every call raises ``UsageError``.

Not guaranteed: that a holder whose key was stolen (``force=True``) or broken without a delay has
already stopped. It learns that at its next renewal. Only writes to a target that checks the epoch
are safe from such a holder; ``checkpoint`` is one.
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
    """Stores leases, ownerships, checkpoints and their history."""

    @property
    def url(self) -> str:
        """The URL of the store, without secrets."""
        ...

    async def declare(self, keys: Sequence[str]) -> int:
        """Declare each key, free, unless it exists; return how many were new.

        Several hosts may declare the same keys at the same time. A key that was forgotten comes
        back with the epoch it had.

        Raises:
            InvalidName: one of them is not a valid key; then none is declared.
        """
        ...

    async def forget(self, keys: Sequence[str]) -> int:
        """Forget those of the keys that are free; return how many. Epochs are kept."""
        ...

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """Grant ``holder`` a lease and make it a member of ``group`` (empty: of none).

        ``token`` is a secret of the caller, which makes a repeated call the same grant.

        Raises:
            InvalidDuration: the duration is outside the store's range, which the message names.
            LeaseLost: this holder's lease has ended, or another token is in use: a new
                incarnation needs a new holder id.
        """
        ...

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """Extend the lease by its duration from now; return what changed since ``since``.

        The cost does not depend on how much the holder owns. In a quiet group it is one round trip
        and one write; on PostgreSQL a second round trip reads the changes if there are any, and
        Azure Blob needs two to three requests. The answer is empty if nothing changed. The same
        step ends what is overdue in the lease's group: expired leases, due breaks and hand-overs
        past their limit, so that every member learns of them. ``info`` replaces what other members
        know of this one; None leaves it unchanged.

        ``next_end_s`` of the answer is the time until the next lease, break or hand-over limit can
        end: of other members, of outsiders that own or owned a key of the group, and of the
        receivers of keys. The caller's own lease does not count. Never negative; None without a
        group, or if nothing can end.

        Raises:
            LeaseLost: the lease has ended; ``reason`` says how. Nothing was extended.
        """
        ...

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        """End the lease and release all that it covers. Safe to call twice.

        ``lapsed``: the holder's local deadline had passed before, and the work was stopped by
        force. The terms then end as ``lapsed``; otherwise as ``released``.
        """
        ...

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """Claim those of the wanted keys that are free; return only these.

        A key is claimed if its epoch is still ``seen_epoch`` and it is available, broken or
        expired, and not reserved for another holder by a hand-over. The epoch rises by one.
        ``force`` also steals keys that are leased or breaking; the owner learns that at its next
        renewal. The term begins with the note of the claim. A key that this lease already claimed
        from that epoch is returned again, and its note is unchanged.

        Raises:
            LeaseLost: the lease has ended; nothing was claimed.
        """
        ...

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """Ask the owner to hand the key over to this holder; return whether the request counts.

        The owner finds the request in its next renewal. It ends with the owner's term, or when
        another holder asks.

        Raises:
            LeaseLost: the lease of this holder has ended.
        """
        ...

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """End each ownership and reserve its key for one holder; return the keys handed over.

        The key is reserved until that holder claims it, its lease ends, or ``limit`` is over; then
        it is available to all. A key that is reserved for the caller and was not claimed yet may be
        passed on in the same way. A repeated hand-over counts as handed over.

        A term that this call ends gets the note of its hand-over, unless that is None. A term that
        ended before, or is not the caller's, keeps its note.
        """
        ...

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Make each key available; return those whose ownership is over in this way.

        That is: by this call, by an earlier one, or by time (the history shows which). A key whose
        epoch has changed is not touched.

        A term that this call ends gets the note that ``notes`` has for its key, in the same step. A
        term that ended otherwise keeps its note.

        Raises:
            UsageError: a note is for a key that is not released in this call, or cannot be stored;
                then nothing is released.
        """
        ...

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """End the ownership ``epoch`` of ``key`` forcibly, after ``after``.

        A second break can only shorten the time. If ``after`` is at least the holder's lease
        duration, the holder has stopped before another can claim the key; with less it may not
        have. Return the resource as it is now, or None if that epoch is not held.

        Raises:
            UnknownResource: there is no such key.
        """
        ...

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Write each position under its ownership; return the refused ones with the reason.

        ``FENCED``: the ownership has ended or a newer epoch exists. ``BEHIND``: the stored
        position is ahead. The same position again is not refused. Fenced writes are counted.
        """
        ...

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """Replace the note of each term under its ownership; return the refused keys.

        Refused as ``FENCED`` by ``checkpoint``, and counted in the same way: the ownership has
        ended or a newer epoch exists. The last note to arrive counts. Renewals do not report it:
        the note is in the history.
        """
        ...

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """Request that the owner of ``key`` in ``epoch`` hands it to ``to``; False if rejected.

        For operators, who have no lease. The owner finds the request in its next renewal, as after
        ``ask``: ``asked_by`` is ``to``. It is rejected if that epoch is not held, if ``to`` is the
        owner itself, if it is not a live member of the key's group, or if it is draining or was
        asked to leave.

        Raises:
            InvalidName: ``key`` is not a valid key, or ``to`` not a valid holder.
            UsageError: ``epoch`` is not a valid epoch.
        """
        ...

    async def request_leave(self, holder: str) -> bool:
        """Request that a member leaves gracefully; False if there is no such live member.

        For operators. The member finds its own ``MemberRecord`` with ``leave_requested`` in its
        next renewal, and so do all others. The request lasts as long as its lease. Nothing is taken
        from it: the member decides what to do. A holder without a group is not a member: it would
        never learn of the request.

        Raises:
            InvalidName: ``holder`` is not a valid name.
        """
        ...

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """Set checkpoints to any position; None removes one. All of them, or none.

        For operators, and only for keys without an owner, by the store's clock. Return the keys
        that are owned, with their holder; if there is one, nothing is changed. A key that is
        reserved for a receiver counts as owned by it for that time.

        Each epoch rises by one, so no write of a former owner and no claim in flight succeeds
        afterwards. The history gets a term of that epoch, started and ended now, with the holder
        ``operator`` and the reason ``RESET``. A key that was reset to the same position, and that
        no holder has owned since, is left unchanged: the call is a repetition.

        Raises:
            UnknownResource: one of the keys is not declared, or is forgotten.
            InvalidName: one of the keys is not valid.
            UsageError: one of the positions is not valid, or cannot be stored.
        """
        ...

    async def groups(self) -> Sequence[str]:
        """Return all groups that have declared keys, sorted. Reads only."""
        ...

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """Return all checkpoints of a group, by key."""
        ...

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """Return all keys of a group as they are now, by key. Reads only."""
        ...

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """Return all members of a group whose lease has not ended, by holder. Reads only."""
        ...

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """Return the last terms of a key with their notes, newest first.

        A store keeps at least the last 100.
        """
        ...

    async def fenced_writes(self, group: str) -> int:
        """Return how many writes to the keys of this group were ever refused for an old epoch."""
        ...

    async def close(self) -> None:
        """Close the connections. Leases are not ended: revoke those that should be."""
        ...


@runtime_checkable
class LeaseRange(Protocol):
    """Optional, beside ``Store``: for a store with narrower limits for a lease than others."""

    def check_lease(self, duration: timedelta) -> None:
        """Check the duration of a lease, without a call to the store.

        Raises:
            InvalidDuration: it is not supported; the message names the range.
        """
        ...


class KeyHandler(Protocol):
    """Does the work on the keys that a member owns. No method may block.

    The member reports every change exactly once: ``opened``, then at the end either ``closed`` (the
    ownership has ended, the work must have stopped) or first ``drain`` (stop gracefully) and, after
    the handler called ``Member.drained``, ``closed``.
    """

    def opened(self, ownership: Ownership) -> None:
        """Start the work: the key is owned."""
        ...

    def drain(self, ownership: Ownership) -> bool:
        """Stop gracefully; True if it has stopped, else ``Member.drained`` is called later."""
        ...

    def closed(self, ownership: Ownership, reason: str) -> None:
        """Stop all work now: the key is no longer owned."""
        ...
