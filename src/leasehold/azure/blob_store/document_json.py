"""A group document as JSON, and back. Only what cannot be derived is stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from leasehold.azure.blob_store.group_document import GroupDocument, KeysElsewhere
from leasehold.azure.blob_store.service_time import RESOLUTION_S
from leasehold.errors import StoreUnusable
from leasehold.model import Checkpoint, EndReason, Lease, MemberInfo, Position, Term
from leasehold.stores.rows import LeaseRow, ResourceRow

if TYPE_CHECKING:
    from leasehold.azure.blob_store.naming import LeaseLocation

# 2: leases name checkpoint blobs, which a program that knows only 1 would lose.
FORMAT = 2
_READ = frozenset((1, FORMAT))
# From one read of a document to the next, nearly all terms and checkpoints are the same.
_remembering = lru_cache(maxsize=1 << 14)


def to_json(document: GroupDocument) -> bytes:
    """Serialise a document. Equal documents give equal bytes."""
    cut = len(document.location.group) + 1
    return _dumped(
        {
            "format": FORMAT,
            "wall": document.wall_s,
            "group": document.location.group,
            "version": document.version,
            "fenced": document.fenced,
            "leases": [_lease_to(document, row) for row in document.leases_to_store()],
            "keys": [_key_to(document, row, cut) for row in document.in_order()],
            "marks": [
                checkpoint_to_json(checkpoint, cut)
                for checkpoint in document.checkpoints_by_key.values()
            ],
        }
    )


def at_wall(body: bytes, document: GroupDocument, wall_s: int) -> bytes:
    """Change the time of writing in what ``to_json`` returned: cheaper than serialising again."""
    before, document.wall_s = document.wall_s, wall_s
    return body.replace(b'"wall":%d,' % before, b'"wall":%d,' % wall_s, 1)


def from_json(location: LeaseLocation, body: bytes, *, modified_s: float = 0.0) -> GroupDocument:
    """Parse a document that was written at ``modified_s`` by the service's clock."""
    try:
        return _document(location, json.loads(body), modified_s)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreUnusable(
            f"the blob {location.document_blob} is damaged: restore an older version of it, if the "
            "account keeps them"
        ) from error


def terms_to_json(key: str, terms: list[Term]) -> bytes:
    """Serialise terms of one key, for its history blob."""
    return _dumped({"format": FORMAT, "key": key, "terms": [_term_to(term) for term in terms]})


def terms_from_json(key: str, body: bytes) -> list[Term]:
    """Parse what ``terms_to_json`` wrote, oldest first."""
    try:
        data = json.loads(body)
        _check_format(data)
        return [_term_from(key, *each) for each in data["terms"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreUnusable(f"the history of {key} is damaged: remove its blob") from error


def _dumped(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _check_format(data: dict[str, Any]) -> None:
    if data["format"] not in _READ:
        raise StoreUnusable(
            f"the store is of format {data['format']!r} and this program knows {FORMAT}: "
            "bring the program up to date"
        )


def _document(location: LeaseLocation, data: dict[str, Any], modified_s: float) -> GroupDocument:
    _check_format(data)
    if data["group"] != location.group:
        raise StoreUnusable(f"the blob {location.document_blob} is the book of another group")
    document = GroupDocument(location)
    document.wall_s = data["wall"]
    document.restore(version=data["version"], fenced=data["fenced"])
    for each in data["leases"]:
        _lease_from(document, each)
    start = f"{location.group}/"
    for each in data["keys"]:
        _key_from(document, each, start, modified_s)
    for last, *rest in data["marks"]:
        document.checkpoints_by_key[start + last] = checkpoint_from_json(start + last, *rest)
    return document


def checkpoint_to_json(checkpoint: Checkpoint, cut: int) -> list[Any]:
    """Return a checkpoint without the first ``cut`` letters of its key."""
    at = checkpoint.position
    return [
        checkpoint.key[cut:],
        checkpoint.epoch,
        at.sequence_number,
        at.stored_offset,
        _seconds(checkpoint.updated_at),
    ]


@_remembering
def checkpoint_from_json(key: str, epoch: int, number: int, offset: str, at: int) -> Checkpoint:
    """Parse what ``checkpoint_to_json`` wrote."""
    position = Position.from_stored(number, offset)
    return Checkpoint(key=key, epoch=epoch, position=position, updated_at=_utc(at))


# ------------------------------------------------------------------ leases


def _lease_to(document: GroupDocument, row: LeaseRow) -> dict[str, Any]:
    lease = row.lease
    data: dict[str, Any] = {
        "holder": lease.holder,
        "token": lease.token,
        "group": lease.group,
        "s": lease.duration_s,
        "v": row.version,
        "info": _info_to(row.info),
    }
    if row.ended is not None:
        data |= {"ended": row.ended.value, "at": row.ends_at}
    if row.leave_requested:
        data["dismissed"] = True
    if row.ended_terms:
        data["lost"] = [[version, term.key, _term_to(term)] for version, term in row.ended_terms]
    if document.is_guest(row):
        data["guest"] = True
    if lease.holder in document.blob_names:
        data["slip"] = document.blob_names[lease.holder]
    elsewhere = document.keys_elsewhere.get(lease.holder)
    if elsewhere:
        data["abroad"] = {group: [each.ended, each.keys] for group, each in elsewhere.items()}
    return data


def _lease_from(document: GroupDocument, data: dict[str, Any]) -> None:
    row = LeaseRow(
        lease=Lease(
            holder=data["holder"],
            token=data["token"],
            group=data["group"],
            duration_s=data["s"],
        ),
        info=MemberInfo(**data["info"]),
        ends_at=data.get("at", 0.0),
        version=data["v"],
        ended=EndReason(data["ended"]) if "ended" in data else None,
        leave_requested=data.get("dismissed", False),
        ended_terms=[(v, _term_from(key, *term)) for v, key, term in data.get("lost", ())],
    )
    document.restore_lease(row, guest=data.get("guest", False))
    if "slip" in data:
        document.blob_names[row.lease.holder] = data["slip"]
    if "abroad" in data:
        document.keys_elsewhere[row.lease.holder] = {
            group: KeysElsewhere(ended=ended, keys={key: (v, w) for key, (v, w) in keys.items()})
            for group, (ended, keys) in data["abroad"].items()
        }


def _info_to(info: MemberInfo) -> dict[str, Any]:
    data: dict[str, Any] = {"host": info.host, "pid": info.pid, "weight": info.weight}
    if info.most is not None:
        data["most"] = info.most
    if info.draining:
        data["draining"] = True
    if info.loads:
        data["loads"] = dict(info.loads)
    if info.failing:
        data["failing"] = dict(info.failing)
    return data


# ------------------------------------------------------------------ keys


def _key_to(document: GroupDocument, row: ResourceRow, cut: int) -> list[Any]:
    data: list[Any] = [row.key[cut:], row.epoch, row.version, row.holder]
    data.append([_term_to(term) for term in row.terms])
    break_at, break_after_s = document.new_breaks.get(row.key, (row.break_at, None))
    more: dict[str, Any] = {
        "break": break_at,
        "after": break_after_s,
        "to": row.handed_to,
        "until": row.handed_until if row.handed_to else None,
        "by": row.handed_by,
        "asked": row.asked_by,
        "forgotten": row.forgotten or None,
        "spilled": row.key in document.archived or None,
    }
    more = {name: value for name, value in more.items() if value is not None}
    return [*data, more] if more else data


def _key_from(document: GroupDocument, data: list[Any], start: str, modified_s: float) -> None:
    last, epoch, version, holder, terms, *rest = data
    more = rest[0] if rest else {}
    key = start + last
    row = ResourceRow(
        key=key,
        group=document.location.group,
        epoch=epoch,
        version=version,
        holder=holder,
        break_at=_break_at(more, modified_s),
        handed_to=more.get("to"),
        handed_until=more.get("until", 0.0),
        handed_by=more.get("by"),
        asked_by=more.get("asked"),
        forgotten=more.get("forgotten", False),
        terms=[_term_from(key, *term) for term in terms],
    )
    if more.get("spilled"):
        document.archived.add(key)
    document.restore_key(row)


def _break_at(more: dict[str, Any], modified_s: float) -> float | None:
    """Return when a break is due: never before its time has passed since it was written."""
    if "after" not in more:
        found: float | None = more.get("break")
        return found
    if not modified_s:
        raise ValueError("nobody says when the book was written")
    due_s = modified_s + RESOLUTION_S + more["after"]
    return float(min(due_s, more.get("break", due_s)))


def _term_to(term: Term) -> list[Any]:
    data: list[Any] = [term.epoch, term.holder, _seconds(term.started_at)]
    if term.reason is not None and term.ended_at is not None:
        data += [_seconds(term.ended_at), term.reason.stored]
    elif term.note:
        data += [None, None]
    return [*data, term.note] if term.note else data


@_remembering
def _term_from(
    key: str,
    epoch: int,
    holder: str,
    started: int,
    ended: int | None = None,
    reason: str | None = None,
    note: str = "",
) -> Term:
    return Term(
        key=key,
        epoch=epoch,
        holder=holder,
        started_at=_utc(started),
        ended_at=None if ended is None else _utc(ended),
        reason=None if reason is None else EndReason(reason),
        note=note,
    )


def _seconds(at: datetime) -> int:
    return int(at.timestamp())


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
