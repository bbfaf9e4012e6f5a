"""Convert records to rows and back. Answers are JSON made by the functions in ``sql/``."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leasehold.core.token_digest import token_digest
from leasehold.model import (
    Changes,
    Checkpoint,
    EndReason,
    MemberInfo,
    MemberRecord,
    Position,
    Resource,
    State,
    Term,
)
from leasehold.stores.postgres.long_names import id_of_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.model import Ownership

Row = dict[str, Any]

_INFO_FIELDS = frozenset(each.name for each in fields(MemberInfo))
_NOT_FINITE = {str(each): each for each in (math.inf, -math.inf, math.nan)}


def to_info(info: MemberInfo | None) -> str | None:
    """Return a member's info as JSON. JSON has no infinity: such a number becomes text."""
    if info is None:
        return None
    return json.dumps(
        {
            "host": info.host,
            "pid": info.pid,
            "weight": _number(info.weight),
            "most": info.most,
            "draining": info.draining,
            "loads": {key: _number(load) for key, load in info.loads.items()},
        }
    )


def to_columns(ownerships: Iterable[Ownership]) -> dict[str, list[Any]]:
    """Return ownerships as one array for each column."""
    owned = list(ownerships)
    return {
        "keys": [id_of_key(each.key) for each in owned],
        "epochs": [each.epoch for each in owned],
        "holders": [each.holder for each in owned],
        "tokens": [token_digest(each.token) for each in owned],
    }


def to_changes(
    version: int,
    resources: list[Row] | None,
    members: list[Row] | None,
    ended: list[Row] | None,
    next_end_s: float | None,
) -> Changes:
    """Convert the answer to a renewal; a list without rows comes as None."""
    return Changes(
        version=version,
        resources=tuple(to_resource(row) for row in resources or ()),
        members=tuple(to_member(row) for row in members or ()),
        ended=tuple(to_term(row) for row in ended or ()),
        next_end_s=next_end_s,
    )


def to_resource(row: Row) -> Resource:
    """Convert a key."""
    breaking_s = row["breaking_s"]
    return Resource(
        **row
        | {
            "state": State(row["state"]),
            "breaking_s": None if breaking_s is None else float(breaking_s),
        }
    )


def to_member(row: Row) -> MemberRecord:
    """Convert a member. A field that only a newer Leasehold knows is skipped."""
    stored = row["info"]
    info = {name: value for name, value in stored.items() if name in _INFO_FIELDS}
    if isinstance(info.get("loads"), dict):
        info["loads"] = {key: _parsed(load) for key, load in info["loads"].items()}
    if "weight" in info:
        info["weight"] = _parsed(info["weight"])
    times = {name: float(row[name]) for name in ("remaining_s", "duration_s")}
    return MemberRecord(
        holder=row["holder"],
        group=row["group"],
        alive=row["alive"],
        info=MemberInfo(**info),
        version=row["version"],
        leave_requested=row.get("dismissed", False),
        **times,
    )


def to_term(row: Row) -> Term:
    """Convert a term."""
    ended_at, reason = row["ended_at"], row["reason"]
    return Term(
        key=row["key"],
        epoch=row["epoch"],
        holder=row["holder"],
        started_at=_moment(row["started_at"]),
        ended_at=None if ended_at is None else _moment(ended_at),
        reason=None if reason is None else EndReason(reason),
        note=row["note"],
    )


def to_checkpoint(row: Row) -> Checkpoint:
    """Convert a checkpoint."""
    return Checkpoint(
        key=row["key"],
        epoch=row["epoch"],
        position=Position.from_stored(row["sequence_number"], row["offset"]),
        updated_at=_moment(row["updated_at"]),
    )


def rows(answer: Sequence[Any]) -> list[Row]:
    """Return the rows of an answer that is one JSON list; an empty one comes as None."""
    return answer[0] or []


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _parsed(value: float | str) -> float:
    return _NOT_FINITE.get(value, math.nan) if isinstance(value, str) else value


def _moment(text: str) -> datetime:
    # The server writes in the time zone of the session.
    return datetime.fromisoformat(text).astimezone(UTC)
