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
    from collections.abc import Iterable, Iterator, Sequence

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
            "failing": dict(info.failing),
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
    since: int,
    next_end_s: float | None,
    version: int,
    group: str | None,
    keys: list[list[Any]] | None,
    resources: list[Row] | None,
    members: list[list[Any]] | None,
    peers: list[Row] | None,
    ended: list[Row] | None,
) -> Changes:
    """Convert the answer to a renewal; a list without rows comes as None."""
    group = group or ""
    changed = [each for held in keys or () for each in _to_resources(group, since, held)]
    changed += map(to_resource, resources or ())
    live = [_to_live_member(group, member) for member in members or ()]
    return Changes(
        version=version,
        resources=tuple(sorted(changed, key=_version)),
        members=tuple(sorted([*live, *map(to_member, peers or ())], key=_version)),
        ended=tuple(to_term(row) for row in ended or ()),
        next_end_s=next_end_s,
    )


def _version(each: Resource | MemberRecord) -> int:
    return each.version


def _to_resources(group: str, since: int, held: list[Any]) -> Iterator[Resource]:
    """Convert the keys of one holder on which nothing is requested or reserved."""
    holder, state, names, epochs, versions = held[0], State(held[1]), *held[2:]
    keys, later = names.split("/"), versions.split(" ")
    numbers = epochs.split(" ")
    if len(numbers) < len(keys):
        numbers = numbers * len(keys)  # all the same, and told once
    for key, epoch, behind in zip(keys, numbers, later, strict=True):
        yield Resource(
            key=f"{group}/{key}",
            epoch=int(epoch),
            state=state,
            version=since + int(behind),
            holder=holder,
        )


def _to_live_member(group: str, member: list[Any]) -> MemberRecord:
    holder, info, version, duration_s, remaining_s = member
    return MemberRecord(
        holder=holder,
        group=group,
        alive=True,
        info=_to_member_info(info),
        version=version,
        remaining_s=float(remaining_s),
        duration_s=float(duration_s),
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
    """Convert a member."""
    times = {name: float(row[name]) for name in ("remaining_s", "duration_s")}
    return MemberRecord(
        holder=row["holder"],
        group=row["group"],
        alive=row["alive"],
        info=_to_member_info(row["info"]),
        version=row["version"],
        leave_requested=row.get("dismissed", False),
        **times,
    )


def _to_member_info(stored: Row) -> MemberInfo:
    """Convert what a member publishes. A field that only a newer Leasehold knows is skipped."""
    info = {name: value for name, value in stored.items() if name in _INFO_FIELDS}
    if isinstance(info.get("loads"), dict):
        info["loads"] = {key: _parsed(load) for key, load in info["loads"].items()}
    if "weight" in info:
        info["weight"] = _parsed(info["weight"])
    return MemberInfo(**info)


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
