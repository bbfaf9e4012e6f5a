"""How the events to be appended are written, and which of their fields mean something."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


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
    """Which field of a record is the key, and which the body; none: the whole record."""

    key: str | None = None
    body: str | None = None


def format_of(path: Path | None) -> Format:
    """What the name of the file says it is; lines if it says nothing."""
    return _BY_SUFFIX.get(path.suffix.lower(), Format.LINES) if path else Format.LINES
