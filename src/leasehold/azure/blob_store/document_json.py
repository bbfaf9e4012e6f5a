"""A book as JSON, and back. What it says is written once; what follows from it is not."""

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

# 2: leases name slips, which a program that knows 1 alone would lose.
FORMAT = 2
_READ = frozenset((1, FORMAT))
# From one reading of a book to the next nearly all terms and marks are the same.
_remembering = lru_cache(maxsize=1 << 14)


def to_json(book: GroupDocument) -> bytes:
    """The book as it is to be kept. The same book gives the same bytes."""
    cut = len(book.home.group) + 1
    return _dumped(
        {
            "format": FORMAT,
            "wall": book.wall_s,
            "group": book.home.group,
            "version": book.version,
            "fenced": book.fenced,
            "leases": [_lease_to(book, row) for row in book.kept_leases()],
            "keys": [_key_to(book, row, cut) for row in book.in_order()],
            "marks": [mark_to(mark, cut) for mark in book.marks.values()],
        }
    )


def at_wall(body: bytes, book: GroupDocument, wall_s: int) -> bytes:
    """What ``to_json`` gave, written at another time: cheaper than to write all anew."""
    before, book.wall_s = book.wall_s, wall_s
    return body.replace(b'"wall":%d,' % before, b'"wall":%d,' % wall_s, 1)


def from_json(home: LeaseLocation, body: bytes, *, modified_s: float = 0.0) -> GroupDocument:
    """The book that was written, at ``modified_s`` by the service's clock.

    Raises:
        StoreUnusable: it is damaged, of a newer version, or of another group.
    """
    try:
        return _book(home, json.loads(body), modified_s)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreUnusable(
            f"the blob {home.book} is damaged: restore an older version of it, if the account "
            "keeps them"
        ) from error


def terms_to_json(key: str, terms: list[Term]) -> bytes:
    """Terms of one key, for the blob of its history."""
    return _dumped({"format": FORMAT, "key": key, "terms": [_term_to(term) for term in terms]})


def terms_from_json(key: str, body: bytes) -> list[Term]:
    """What ``terms_to_json`` wrote, oldest first.

    Raises:
        StoreUnusable: it is damaged, or of a newer version.
    """
    try:
        told = json.loads(body)
        _check_format(told)
        return [_term_from(key, *each) for each in told["terms"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreUnusable(f"the history of {key} is damaged: remove its blob") from error


def _dumped(told: object) -> bytes:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _check_format(told: dict[str, Any]) -> None:
    if told["format"] not in _READ:
        raise StoreUnusable(
            f"the store is of format {told['format']!r} and this program knows {FORMAT}: "
            "bring the program up to date"
        )


def _book(home: LeaseLocation, told: dict[str, Any], modified_s: float) -> GroupDocument:
    _check_format(told)
    if told["group"] != home.group:
        raise StoreUnusable(f"the blob {home.book} is the book of another group")
    book = GroupDocument(home)
    book.wall_s = told["wall"]
    book.restore(version=told["version"], fenced=told["fenced"])
    for each in told["leases"]:
        _lease_from(book, each)
    start = f"{home.group}/"
    for each in told["keys"]:
        _key_from(book, each, start, modified_s)
    for last, *rest in told["marks"]:
        book.marks[start + last] = mark_from(start + last, *rest)
    return book


def mark_to(mark: Checkpoint, cut: int) -> list[Any]:
    """A checkpoint without the first ``cut`` letters of its key."""
    at = mark.position
    return [mark.key[cut:], mark.epoch, at.sequence_number, at.offset, _seconds(mark.updated_at)]


@_remembering
def mark_from(key: str, epoch: int, number: int, offset: str, at: int) -> Checkpoint:
    """What ``mark_to`` wrote."""
    position = Position(sequence_number=number, offset=offset)
    return Checkpoint(key=key, epoch=epoch, position=position, updated_at=_moment(at))


# ------------------------------------------------------------------ leases


def _lease_to(book: GroupDocument, row: LeaseRow) -> dict[str, Any]:
    lease = row.lease
    told: dict[str, Any] = {
        "holder": lease.holder,
        "token": lease.token,
        "group": lease.group,
        "s": lease.duration_s,
        "v": row.version,
        "info": _info_to(row.info),
    }
    if row.ended is not None:
        told |= {"ended": row.ended.value, "at": row.ends_at}
    if row.leave_requested:
        told["dismissed"] = True
    if row.ended_terms:
        told["lost"] = [[version, term.key, _term_to(term)] for version, term in row.ended_terms]
    if book.is_guest(row):
        told["guest"] = True
    if lease.holder in book.slips:
        told["slip"] = book.slips[lease.holder]
    abroad = book.abroad.get(lease.holder)
    if abroad:
        told["abroad"] = {group: [each.ended, each.keys] for group, each in abroad.items()}
    return told


def _lease_from(book: GroupDocument, told: dict[str, Any]) -> None:
    row = LeaseRow(
        lease=Lease(
            holder=told["holder"],
            token=told["token"],
            group=told["group"],
            duration_s=told["s"],
        ),
        info=MemberInfo(**told["info"]),
        ends_at=told.get("at", 0.0),
        version=told["v"],
        ended=EndReason(told["ended"]) if "ended" in told else None,
        leave_requested=told.get("dismissed", False),
        ended_terms=[(v, _term_from(key, *term)) for v, key, term in told.get("lost", ())],
    )
    book.restore_lease(row, guest=told.get("guest", False))
    if "slip" in told:
        book.slips[row.lease.holder] = told["slip"]
    if "abroad" in told:
        book.abroad[row.lease.holder] = {
            group: KeysElsewhere(ended=ended, keys={key: (v, w) for key, (v, w) in keys.items()})
            for group, (ended, keys) in told["abroad"].items()
        }


def _info_to(info: MemberInfo) -> dict[str, Any]:
    told: dict[str, Any] = {"host": info.host, "pid": info.pid, "weight": info.weight}
    if info.most is not None:
        told["most"] = info.most
    if info.draining:
        told["draining"] = True
    if info.loads:
        told["loads"] = dict(info.loads)
    return told


# ------------------------------------------------------------------ keys


def _key_to(book: GroupDocument, row: ResourceRow, cut: int) -> list[Any]:
    told: list[Any] = [row.key[cut:], row.epoch, row.version, row.holder]
    told.append([_term_to(term) for term in row.terms])
    break_at, break_after_s = book.fresh.get(row.key, (row.break_at, None))
    more: dict[str, Any] = {
        "break": break_at,
        "after": break_after_s,
        "to": row.handed_to,
        "until": row.handed_until if row.handed_to else None,
        "by": row.handed_by,
        "asked": row.asked_by,
        "forgotten": row.forgotten or None,
        "spilled": row.key in book.spilled or None,
    }
    more = {name: value for name, value in more.items() if value is not None}
    return [*told, more] if more else told


def _key_from(book: GroupDocument, told: list[Any], start: str, modified_s: float) -> None:
    last, epoch, version, holder, terms, *rest = told
    more = rest[0] if rest else {}
    key = start + last
    row = ResourceRow(
        key=key,
        group=book.home.group,
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
        book.spilled.add(key)
    book.restore_key(row)


def _break_at(more: dict[str, Any], modified_s: float) -> float | None:
    """When a break is due: never before its time has passed since it was written."""
    if "after" not in more:
        found: float | None = more.get("break")
        return found
    if not modified_s:
        raise ValueError("nobody says when the book was written")
    due_s = modified_s + RESOLUTION_S + more["after"]
    return float(min(due_s, more.get("break", due_s)))


def _term_to(term: Term) -> list[Any]:
    told: list[Any] = [term.epoch, term.holder, _seconds(term.started_at)]
    if term.reason is not None and term.ended_at is not None:
        told += [_seconds(term.ended_at), term.reason.stored]
    elif term.note:
        told += [None, None]
    return [*told, term.note] if term.note else told


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
        started_at=_moment(started),
        ended_at=None if ended is None else _moment(ended),
        reason=None if reason is None else EndReason(reason),
        note=note,
    )


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
