"""The formats of events on the command line, and how events are printed."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.cli.tables import line_width
from leasehold.printable import json_text, printable

if TYPE_CHECKING:
    from leasehold.events import Event, EventBatch


class Format(StrEnum):
    """How the events to be appended are written."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_BY_SUFFIX = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which field of a record is the key, and which the body; none: the whole record.

    ``strings``: the values of a CSV stay text.
    """

    key: str | None = None
    body: str | None = None
    strings: bool = False


def format_of(path: Path | None) -> Format:
    """Return the format that the suffix of the file means; lines if it means none."""
    return _BY_SUFFIX.get(path.suffix.lower(), Format.LINES) if path else Format.LINES


_KEY_WIDTH = 12
_MIN_BODY_WIDTH = 16
_WIDE = 200  # columns, in which a long key takes nothing away from a body


class EventForm(StrEnum):
    """How events are printed."""

    TABLE = "table"
    JSONL = "jsonl"
    RAW = "raw"


def print_head(form: EventForm) -> None:
    """Print the titles of the table."""
    if form is EventForm.TABLE:
        _write([_line("part", "sequence", "enqueued", "key", "body")])


def print_batch(batch: EventBatch, form: EventForm) -> None:
    """Print all events of a batch in order, and flush."""
    if form is EventForm.RAW:
        _write(event.body for event in batch)
    elif form is EventForm.JSONL:
        _write(json_text(_record(event), ensure_ascii=False).encode() for event in batch)
    else:
        _write(_row(event) for event in batch)


def _write(lines: Iterable[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
    sys.stdout.buffer.flush()


def _record(event: Event) -> dict[str, object]:
    """Return all fields of an event; a body that is not text as ``body_base64``."""
    try:
        body = {"body": event.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(event.body).decode()}
    return {
        "partition": int(event.partition),
        "sequence_number": event.sequence_number,
        "offset": event.offset,
        "enqueued_at": event.enqueued_at.isoformat() if event.enqueued_at else None,
        "key": event.key,
        **body,
        "properties": dict(event.properties),
        "epoch": event.epoch,
    }


def _row(event: Event) -> bytes:
    at = event.enqueued_at.isoformat(" ", "milliseconds")[:23] if event.enqueued_at else "-"
    key = "-" if event.key is None else printable(event.key)
    body = printable(event.body.decode(errors="replace"))
    return _line(event.partition, str(event.sequence_number), at, key, body)


def _line(partition: str, number: str, at: str, key: str, body: str) -> bytes:
    width = line_width()
    key = _cut(key, _KEY_WIDTH) if width <= _WIDE else key
    head = f"{partition:>4} {number:>10} {at:<23} {key:<{_KEY_WIDTH}} "
    room = max(width - len(head), _MIN_BODY_WIDTH)
    return (head + _cut(body, room)).rstrip().encode()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
