"""The calls of the ``Store`` contract on PostgreSQL: each is one statement and one transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from leasehold.core.token_digest import token_digest
from leasehold.model import Changes, Lease, Ownership, Refusal
from leasehold.names import check_name
from leasehold.stores.postgres import migrations
from leasehold.stores.postgres import rows as to
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.connections import Connections
from leasehold.stores.postgres.driver_errors import to_store_error
from leasehold.stores.postgres.long_names import id_of_group, id_of_key, long_name_columns
from leasehold.stores.validation import (
    HISTORY_LIMIT,
    RELEASED_BY,
    check_hand_over_request,
    checked_keys,
    checked_lease,
    checked_notes,
    checked_positions,
    limit_s,
    lost_lease,
    purge_after_s,
    revoked_as,
    unknown_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.model import (
        Checkpoint,
        CheckpointWrite,
        HandOver,
        KeyClaim,
        MemberInfo,
        MemberRecord,
        Note,
        Position,
        Resource,
        Term,
    )

_TIMEOUT = timedelta(seconds=5)
_MAX_CONNECTIONS = 4
# A migration may have to wait for one that another host is at, and for its disk.
_MIGRATION_LIMIT_S = 60.0


class PostgresStore:
    """A ``Store`` in a database. Its clock is the server's; ours only bounds the waiting."""

    def __init__(self, connections: Connections) -> None:
        """Made by ``open_url``, which also sees to the schema."""
        self._connections = connections

    @property
    def url(self) -> str:
        """The URL of the store, without secrets."""
        return self._connections.address.url

    async def declare(self, keys: Sequence[str]) -> int:
        """Declare keys; return how many are new."""
        ids = {id_of_key(key): key for key in checked_keys(keys)}
        (new,) = await self._ask("declare", keys=list(ids), **long_name_columns(ids.items()))
        return int(new)

    async def forget(self, keys: Sequence[str]) -> int:
        """Forget keys without an owner; return how many were forgotten."""
        (gone,) = await self._ask("forget", keys=[id_of_key(key) for key in checked_keys(keys)])
        return int(gone)

    async def grant(
        self, *, holder: str, token: str, group: str, duration: timedelta, info: MemberInfo
    ) -> Lease:
        """Grant a lease."""
        asked = checked_lease(holder=holder, token=token, group=group, duration=duration)
        group_id = id_of_group(group)
        lost, granted_group, duration_s = await self._ask(
            "grant",
            holder=holder,
            token=token_digest(token),
            group=group_id,
            duration_s=asked.duration_s,
            info=to.to_info(info),
            remember_s=purge_after_s("any/group"),
            remember_loose_s=purge_after_s(""),
            **long_name_columns([(group_id, group)]),
        )
        _raise_if_lost(holder, lost)
        return Lease(holder=holder, token=token, group=granted_group, duration_s=duration_s)

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        """Extend a lease; return what changed."""
        lost, version, next_end_s = await self._ask(
            "renew",
            holder=lease.holder,
            token=token_digest(lease.token),
            info=to.to_info(info),
        )
        _raise_if_lost(lease.holder, lost)
        if version == since:
            return Changes(version=version, next_end_s=next_end_s)
        changes = await self._ask("changes", holder=lease.holder, since=since)
        return to.to_changes(since, next_end_s, *changes)

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        """End a lease and all that it holds."""
        token, reason = token_digest(lease.token), revoked_as(runs=True, lapsed=lapsed)
        await self._ask("revoke", holder=lease.holder, token=token, reason=reason.stored)

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        """Claim keys under a lease; return what was won."""
        lost, indexes, epochs = await self._ask(
            "claim",
            holder=lease.holder,
            token=token_digest(lease.token),
            keys=[id_of_key(each.key) for each in wanted],
            seen=[each.seen_epoch for each in wanted],
            notes=[each.note for each in wanted],
            force=force,
            keep=HISTORY_LIMIT,
        )
        _raise_if_lost(lease.holder, lost)
        return [
            Ownership(
                key=wanted[index - 1].key, epoch=epoch, holder=lease.holder, token=lease.token
            )
            for index, epoch in zip(indexes or (), epochs or (), strict=True)
        ]

    async def ask(self, lease: Lease, wanted: KeyClaim) -> bool:
        """Ask the owner of a key to hand it over."""
        lost, stands = await self._ask(
            "ask",
            holder=lease.holder,
            token=token_digest(lease.token),
            key=id_of_key(wanted.key),
            seen=wanted.seen_epoch,
        )
        _raise_if_lost(lease.holder, lost)
        return bool(stands)

    async def hand_over(self, hand_overs: Sequence[HandOver], *, limit: timedelta) -> Sequence[str]:
        """Hand keys over to other holders; return the keys that were passed."""
        (indexes,) = await self._ask(
            "hand_over",
            **to.to_columns(each.ownership for each in hand_overs),
            to=[each.to for each in hand_overs],
            notes=[each.note for each in hand_overs],
            limit_s=limit_s(limit, what="hand-over limit"),
        )
        return [hand_overs[index - 1].ownership.key for index in indexes]

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Release keys; return those that are released."""
        checked = checked_notes(ownerships, notes)
        (indexes,) = await self._ask(
            "release",
            **to.to_columns(ownerships),
            notes=[checked.get(each.key) for each in ownerships],
            reasons=[reason.stored for reason in RELEASED_BY],
        )
        return [ownerships[index - 1].key for index in indexes]

    async def break_(self, key: str, *, epoch: int, after: timedelta) -> Resource | None:
        """Break one ownership, after a while."""
        after_s = limit_s(after, what="break period")
        known, shown = await self._ask("break", key=id_of_key(key), epoch=epoch, after_s=after_s)
        if not known:
            raise unknown_key(key)
        return None if shown is None else to.to_resource(shown)

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Write checkpoints; return the refused ones."""
        indexes, refusals = await self._ask(
            "checkpoint",
            **to.to_columns(each.ownership for each in marks),
            sequences=[each.position.sequence_number for each in marks],
            offsets=[each.position.stored_offset for each in marks],
        )
        return {
            marks[index - 1].ownership.key: Refusal(refusal)
            for index, refusal in zip(indexes or (), refusals or (), strict=True)
        }

    async def annotate(self, notes: Sequence[Note]) -> Sequence[str]:
        """Replace the notes of terms; return the refused keys."""
        (indexes,) = await self._ask(
            "annotate",
            **to.to_columns(each.ownership for each in notes),
            texts=[each.text for each in notes],
        )
        return list(dict.fromkeys(notes[index - 1].ownership.key for index in indexes))

    async def request_hand_over(self, key: str, *, epoch: int, to: str) -> bool:
        """Request that the owner hands a key over."""
        check_hand_over_request(key, epoch=epoch, to=to)
        (stands,) = await self._ask("suggest", key=id_of_key(key), epoch=epoch, to=to)
        return bool(stands)

    async def request_leave(self, holder: str) -> bool:
        """Request that a member leaves its group."""
        (requested,) = await self._ask("dismiss", holder=check_name(holder, what="holder"))
        return bool(requested)

    async def reset(self, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
        """Set or remove checkpoints of keys without an owner; return the owners of the others."""
        checked = checked_positions(positions)
        keys = list(checked)
        unknown, indexes, holders = await self._ask(
            "reset",
            keys=[id_of_key(key) for key in keys],
            sequences=[each.sequence_number if each else None for each in checked.values()],
            offsets=[each.stored_offset if each else None for each in checked.values()],
            keep=HISTORY_LIMIT,
        )
        if unknown:
            raise unknown_key(keys[unknown[0] - 1])
        return {
            keys[index - 1]: holder
            for index, holder in zip(indexes or (), holders or (), strict=True)
        }

    async def groups(self) -> Sequence[str]:
        """List the groups that have keys."""
        (found,) = await self._ask("groups")
        return sorted(found or ())

    async def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """Read the checkpoints of a group."""
        found = to.rows(await self._ask("checkpoints", group=id_of_group(group)))
        return {row["key"]: to.to_checkpoint(row) for row in found}

    async def resources(self, group: str) -> Mapping[str, Resource]:
        """Read the keys of a group."""
        found = to.rows(await self._ask("resources", group=id_of_group(group)))
        return {row["key"]: to.to_resource(row) for row in found}

    async def members(self, group: str) -> Mapping[str, MemberRecord]:
        """Read the members of a group."""
        found = to.rows(await self._ask("peers", group=id_of_group(group)))
        return {row["holder"]: to.to_member(row) for row in found}

    async def history(self, key: str, *, limit: int = 10) -> Sequence[Term]:
        """Read the terms of a key, newest first."""
        found = to.rows(await self._ask("history", key=id_of_key(key), limit=max(0, limit)))
        return [to.to_term(row) for row in found]

    async def fenced_writes(self, group: str) -> int:
        """Return how many writes were fenced in a group."""
        (writes,) = await self._ask("fenced_writes", group=id_of_group(group))
        return int(writes)

    async def close(self) -> None:
        """Close the store; no lease ends by that."""
        await self._connections.close()

    async def _ask(self, query: str, **values: object) -> tuple[Any, ...]:
        return await self._connections.ask(migrations.queries()[query], values)


async def open_url(
    url: str, clock: Clock, *, patience: timedelta = _TIMEOUT, create: bool = True
) -> PostgresStore:
    """Connect, and bring the schema up to date where it is not.

    Without ``create`` no table is made and no schema changed.

    ``patience`` is how long a call may take in all, the repetitions after a broken connection
    included. Opening does not repeat: who starts a program wants to know at once.

    Raises:
        InvalidUrl: the URL can not be read.
        UsageError: there is no store in the database yet, without ``create``.
        StoreUnavailable: there is no answer.
        StoreUnusable: read-only, full, without the needed rights, or made by a newer version.
    """
    patience_s = patience.total_seconds()
    address = DatabaseAddress.of(url)
    connections = Connections(address, clock, patience_s=patience_s, most=_MAX_CONNECTIONS)
    try:
        steps = await clock.bounded(migrations.missing(connections), seconds=patience_s)
        if not create:
            migrations.check_current(connections, steps)
        elif steps:
            await clock.bounded(migrations.apply(connections, steps), seconds=_MIGRATION_LIMIT_S)
    except (psycopg.Error, TimeoutError) as error:
        await connections.close()
        raise to_store_error(error, address) from error
    except BaseException:
        await connections.close()
        raise
    return PostgresStore(connections)


# Words of the functions in ``sql/``, and those of ``LeaseLost.reason`` where they differ.
_REASONS = {"another token is in use": "holder_id_in_use"}


def _raise_if_lost(holder: str, reason: str | None) -> None:
    """Raise what the functions in ``sql/`` can not: an error there would undo their step."""
    if reason is not None:
        raise lost_lease(holder, _REASONS.get(reason, reason))
