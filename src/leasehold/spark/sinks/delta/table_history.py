"""What the log of a Delta table tells: whose commit each version is, and what it moved.

Our commits carry one line of JSON under ``leasehold`` in their commit information: what was done,
for which group, and on which version it was judged. They are read from the table's own log, which
reaches as far back as ``delta.logRetentionDuration`` says (30 days unless set).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leasehold.spark.ranges import Range
from leasehold.spark.sinks.port import Commit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasehold.spark.sinks.delta.storage import Storage
    from leasehold.spark.sinks.port import Batch

KEY = "leasehold"
LOG = "_delta_log"
_REPLACING = ("RESTORE", "CREATE OR REPLACE TABLE", "REPLACE TABLE")
_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version of a table.

    Attributes:
        ours: what we wrote into it; empty if it is not ours.
        transactions: the application transactions it sets.
        paths: the data files that it adds or removes.
    """

    version: int
    info: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    paths: tuple[str, ...] = ()

    @property
    def replaces(self) -> str:
        """How this version puts other rows in place of all rows, in words; empty if it does not."""
        if self.ours:
            return ""
        operation = str(self.info.get("operation", ""))
        told = self.info.get("operationParameters") or {}
        if operation.startswith(_REPLACING):
            return operation
        whole = str(told.get("predicate") or "") in {"", "[]"}
        dynamic = "dynamic" in json.dumps(told).lower()
        if str(told.get("mode", "")) == "Overwrite" and whole and not dynamic:
            return f"{operation}, mode Overwrite"
        return ""


def file_of(version: int) -> str:
    """The file of a version, below the table."""
    return f"{LOG}/{version:020d}.json"


def entry(place: Storage, version: int) -> Entry | None:
    """The version as its file tells it; None if the file is not there (any more)."""
    text = place.read(file_of(version))
    return None if text is None else parsed(version, text.decode("utf-8"))


def parsed(version: int, text: str) -> Entry:
    """The version from the text of its file."""
    info: dict[str, Any] = {}
    transactions: dict[str, int] = {}
    paths: list[str] = []
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        info = action.get("commitInfo", info)
        if "txn" in action:
            transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
        paths.extend(action[kind]["path"] for kind in ("add", "remove") if kind in action)
    return Entry(
        version=version,
        info=info,
        ours=_ours(info),
        transactions=transactions,
        paths=tuple(paths),
    )


def entries(place: Storage) -> Iterator[Entry]:
    """All versions whose files are there, oldest first."""
    for name in place.names(LOG):
        stem, _, suffix = name.partition(".")
        if suffix == "json" and stem.isdigit():
            found = entry(place, int(stem))
            if found is not None:
                yield found


def mark_of_batch(batch: Batch, *, on: int, rows: int) -> dict[str, str]:
    """What a commit says of itself. ``on``: the version on which it was judged."""
    shares = [[s.range.partition, s.range.start, s.range.end, s.epoch] for s in batch.shares]
    return mark(
        "commit",
        batch.group,
        on=on,
        shares=shares,
        holder=batch.holder,
        began_at=batch.began_at.astimezone(UTC).isoformat(),
        rows=rows,
    )


def mark(kind: str, group: str, *, on: int, **more: Any) -> dict[str, str]:
    """The custom metadata of a commit of ours."""
    return {KEY: json.dumps({"kind": kind, "group": group, "on": on, **more})}


def commits_in(found: Entry, group: str) -> Iterator[Commit]:
    """The shares that a version has committed for a group."""
    told = found.ours
    if told.get("kind") != "commit" or told.get("group") != group:
        return
    committed_at = datetime.fromtimestamp(int(found.info.get("timestamp", 0)) / _MS, UTC)
    for partition, start, end, epoch in told["shares"]:
        yield Commit(
            commit=str(found.version),
            range=Range(partition=partition, start=start, end=end),
            epoch=epoch,
            holder=told["holder"],
            began_at=datetime.fromisoformat(told["began_at"]),
            committed_at=committed_at,
            rows=told["rows"],
        )


def _ours(info: Mapping[str, Any]) -> dict[str, Any]:
    try:
        told = json.loads(info[KEY])
    except (KeyError, TypeError, ValueError):
        return {}
    return told if isinstance(told, dict) and "kind" in told and "on" in told else {}
