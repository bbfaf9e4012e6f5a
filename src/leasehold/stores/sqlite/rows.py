"""Rows of the database, and the records they stand for."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from leasehold.core.lease_rules import state_of
from leasehold.core.token_digest import token_digest
from leasehold.model import (
    Checkpoint,
    EndReason,
    MemberInfo,
    MemberRecord,
    Ownership,
    Position,
    Resource,
    State,
    Term,
)

if TYPE_CHECKING:
    from leasehold.stores.sqlite.database import Params

_INFO_FIELDS = {field.name for field in fields(MemberInfo)}


@dataclass(slots=True)
class SqliteLeaseRow:
    """A row of ``lease``: what the rules ask for, in the order of the query.

    ``token`` is the digest of the token, as ``lease_token`` is in the rows of resources.
    """

    holder: str
    token: str
    group: str
    duration_s: float
    ends_at: float
    heard: int
    ended: str | None
    dismissed: int

    def runs(self, now: float) -> bool:
        """Whether it has not ended, in the books or by time."""
        return self.ended is None and self.ends_at > now


@dataclass(slots=True)
class SqliteResourceRow:
    """A row of the view ``resource_seen``, its columns in order."""

    key: str
    group: str
    epoch: int
    holder: str | None
    handed_to: str | None
    handed_until: float | None
    handed_by: str | None
    asked_by: str | None
    break_at: float | None
    forgotten: int
    version: int
    lease_ends_at: float
    lease_token: str | None
    kept_until: float | None

    def state(self, now: float) -> State:
        """Its state by the store's clock."""
        return state_of(
            held=self.holder is not None,
            lease_ends_at=self.lease_ends_at,
            break_at=self.break_at,
            now=now,
        )

    def proven_by(self, ownership: Ownership) -> bool:
        """Whether the ownership is the one in force, shown with the right token."""
        return (
            self.holder == ownership.holder
            and self.epoch == ownership.epoch
            and self.lease_token == token_digest(ownership.token)
        )

    def kept_for(self, now: float) -> str | None:
        """The holder it was handed to, for as long as it is kept for it."""
        lapsed = self.kept_until is None or self.kept_until <= now
        return None if lapsed else self.handed_to

    def shown(self, now: float) -> Resource:
        """The resource as anybody may see it."""
        return Resource(
            key=self.key,
            epoch=self.epoch,
            state=self.state(now),
            version=self.version,
            holder=self.holder,
            handed_to=self.kept_for(now),
            asked_by=self.asked_by,
            breaking_s=None if self.break_at is None else max(0.0, self.break_at - now),
            forgotten=bool(self.forgotten),
        )

    def params(self) -> Params:
        """The values of its own columns, by name."""
        return {
            "key": self.key,
            "epoch": self.epoch,
            "holder": self.holder,
            "handed_to": self.handed_to,
            "handed_until": self.handed_until,
            "handed_by": self.handed_by,
            "asked_by": self.asked_by,
            "break_at": self.break_at,
            "forgotten": self.forgotten,
            "version": self.version,
        }


def info_text(info: MemberInfo) -> str:
    """What a member tells of itself, as it is stored."""
    plain = {name: getattr(info, name) for name in _INFO_FIELDS}
    # These may be any mappings; JSON knows only dicts.
    mappings = {"loads": dict(info.loads), "failing": dict(info.failing)}
    return json.dumps({**plain, **mappings}, sort_keys=True)


def info_of(text: str) -> MemberInfo:
    """What was stored. A field that only a newer Leasehold knows is passed over."""
    stored = json.loads(text)
    return MemberInfo(**{name: value for name, value in stored.items() if name in _INFO_FIELDS})


def member_of(row: tuple[Any, ...], now: float) -> MemberRecord:
    """A row of the queries on peers."""
    holder, group, info, ends_at, ended, version, duration_s, dismissed = row
    return MemberRecord(
        holder=holder,
        group=group,
        info=info_of(info),
        alive=ended is None and ends_at > now,
        version=version,
        remaining_s=max(0.0, ends_at - now),
        duration_s=duration_s,
        leave_requested=bool(dismissed),
    )


def term_of(row: tuple[Any, ...]) -> Term:
    """A row of the queries on terms."""
    key, epoch, holder, started_at, ended_at, reason, note = row
    return Term(
        key=key,
        epoch=epoch,
        holder=holder,
        started_at=datetime.fromisoformat(started_at),
        ended_at=None if ended_at is None else datetime.fromisoformat(ended_at),
        reason=None if reason is None else EndReason(reason),
        note=note,
    )


def checkpoint_of(row: tuple[Any, ...]) -> Checkpoint:
    """A row of the query on checkpoints."""
    key, epoch, sequence_number, offset, updated_at = row
    return Checkpoint(
        key=key,
        epoch=epoch,
        position=Position.from_stored(sequence_number, offset),
        updated_at=datetime.fromisoformat(updated_at),
    )
