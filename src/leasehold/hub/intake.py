"""From the bytes of a delivery to a batch that the log stores, in one pass.

The events of a delivery usually differ in their bodies only: what stands before a body is looked at
when it is not the same as that of the event before.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import BATCH_FORMAT, DATA, MESSAGE_ANNOTATIONS, sections
from leasehold.hub.sections import Head, body_of, head_of
from leasehold.log.events import SENT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROPERTIES = SENT_SCHEMA.field("properties").type
_U32 = struct.Struct(">I").unpack_from
_DATA8, _DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_NO_HEAD = Head()
_NEVER = b"\xff"  # no section begins so
_MANY = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """The events of one delivery. ``sequence`` is the client's own number of the first, if any."""

    batch: pa.RecordBatch
    sequence: int | None = None


def intake_of(data: bytes, message_format: int) -> Intake:
    """The events in a delivery: one, or those of a batch.

    Raises:
        AmqpFault: it is damaged, or there is none.
    """
    if message_format == BATCH_FORMAT:
        return _of_batch(data)
    body, head, _ = body_of(data)
    return _made([body], [head], Head())


def _of_batch(data: bytes) -> Intake:
    bodies: list[bytes] = []
    heads: list[Head] = []
    at, around = _envelope(data)
    end, starts = len(data), data.startswith
    known, step, head = _NEVER, 0, _NO_HEAD  # of the event before: all up to its body, its length
    prefix, prefix_head = b"", _NO_HEAD  # sections before a body, and what they say
    while at < end:
        if starts(known, at) and at + step <= end:
            bodies.append(data[at + len(known) : at + step])
            heads.append(head)
            at += step
            continue
        first, after = _bounds(data, at)
        if first < 0:  # a section that is no event
            at = after
            continue
        is_same = starts(prefix, first)
        body_at = _body_at(data, first + len(prefix) if is_same else first, after)
        if body_at >= 0:
            body, head = data[body_at:after], prefix_head if is_same else _NO_HEAD
        else:
            body, head, place = body_of(data[first:after])
            if place is not None:
                prefix, prefix_head = data[first : first + place[0]], head
                body_at = first + sum(place)
        bodies.append(body)
        heads.append(head)
        known, step = (data[at:body_at], after - at) if body_at >= 0 else (_NEVER, 0)
        at = after
    return _made(bodies, heads, around)


def _body_at(data: bytes, at: int, end: int) -> int:
    """Where the body begins, if a data section begins here and ends there; else -1."""
    if data.startswith(_DATA8, at) and at + 5 <= end and at + 5 + data[at + 4] == end:
        return at + 5
    if data.startswith(_DATA32, at) and at + 8 <= end and at + 8 + _U32(data, at + 4)[0] == end:
        return at + 8
    return -1


def _bounds(data: bytes, at: int) -> tuple[int, int]:
    """Where the event in the data section at ``at`` begins and ends; -1 for another section."""
    if data.startswith(_DATA8, at) and at + 5 <= len(data):
        first = at + 5
        after = first + data[at + 4]
    elif data.startswith(_DATA32, at) and at + 8 <= len(data):
        first = at + 8
        after = first + _U32(data, at + 4)[0]
    else:
        code, _, _, size = next(sections(memoryview(data)[at:]))
        if code == DATA:
            raise AmqpFault("a batch has a data section that is no event")
        return -1, at + size
    if after > len(data):
        raise AmqpFault("a batch ends inside an event")
    return first, after


def _envelope(data: bytes) -> tuple[int, Head]:
    """Where the first event of a batch is, and what stands before all of them."""
    at = 0
    for code, start, _, end in sections(data):
        if code >= DATA:
            at = start
            break
        at = end
    if not at:
        return 0, _NO_HEAD
    found = [data[s:e] for code, s, _, e in sections(data[:at]) if code == MESSAGE_ANNOTATIONS]
    return at, head_of(b"".join(found))


@lru_cache(maxsize=4)
def _no_properties(count: int) -> pa.Array:
    return pa.array([None] * count, _PROPERTIES)


def _made(bodies: Sequence[bytes], heads: Sequence[Head], around: Head) -> Intake:
    """The columns. An event without a key has that of the batch around it."""
    if not bodies:
        raise AmqpFault("a delivery has no event")
    count, kinds = len(bodies), set(map(id, heads))
    first = heads[0]
    if len(kinds) == 1:
        key = around.key if first.key is None else first.key
        keys = (
            pa.nulls(count, pa.utf8())
            if key is None
            else pa.repeat(pa.scalar(key, pa.utf8()), count)
        )
    else:
        keys = pa.array([around.key if each.key is None else each.key for each in heads], pa.utf8())
    if any(each.properties for each in ((first,) if len(kinds) == 1 else heads)):
        properties = pa.array([each.properties for each in heads], _PROPERTIES)
    else:
        properties = _no_properties(max(count, _MANY)).slice(0, count)
    columns = [keys, pa.array(bodies, pa.binary()), properties]
    number = first.sequence if first.sequence is not None else around.sequence
    return Intake(batch=pa.RecordBatch.from_arrays(columns, schema=SENT_SCHEMA), sequence=number)
