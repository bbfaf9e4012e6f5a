"""How Azure's Event Hubs clients keep their records: names, metadata, and what is found in them.

Pure. Written is exactly what their clients write; read is everything that any of them has ever
written, and no record is so odd that reading it raises:

==============================================  ===========================================
found                                           read as
==============================================  ===========================================
``ownerid`` in any casing (C++: ``ownerId``)    the owner
no ``ownerid``, or an empty one                 nobody owns it
``offset`` empty, ``None``, ``no offset``       no offset (.NET 5.11, Python)
``sequencenumber`` empty, ``None``, no number   no sequence number (.NET)
more keys (``clientidentifier``)                nothing
a name that is not lower-cased                  the same name (Java, Go, Rust, C++)
==============================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import unquote

from leasehold.model import Position
from leasehold.names import partition_group, partition_key

Kind = Literal["ownership", "checkpoint"]

# What their clients begin with where nothing was done yet.
BEGINNING = Position(sequence_number=-1, offset="-1")

_NOTHING = frozenset(("", "none", "null", "no offset"))
_PARTS_OF_NAME = 5
_PARTS_OF_KEY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """One consumer group of one hub, as their calls name it.

    To us the hub is the stream ``namespace/hub``. Their Python, .NET and JS clients lower-case all
    names, so the keys do too: whoever spells them otherwise means the same group. With a ``stream``
    the keys are those of hosts of ours that read it, to the letter.
    """

    namespace: str
    hub: str
    group: str
    stream: str = ""

    @property
    def keys_group(self) -> str:
        """The group of all keys of this place."""
        return partition_group(*self._ours())

    def key(self, partition: str) -> str:
        """The key of one partition."""
        return partition_key(*self._ours(), partition)

    def _ours(self) -> tuple[str, str]:
        if self.stream:
            return self.stream, self.group
        return f"{self.namespace}/{self.hub}".lower(), self.group.lower()

    def prefix(self, kind: Kind, *, lower: bool = True) -> str:
        """How the names of all blobs of this kind begin."""
        prefix = f"{self.namespace}/{self.hub}/{self.group}/{kind}/"
        return prefix.lower() if lower else prefix

    def blob_name(self, kind: Kind, partition: str, *, lower: bool = True) -> str:
        """The name of one blob."""
        name = f"{self.prefix(kind, lower=False)}{partition}"
        return name.lower() if lower else name

    def ids(self) -> dict[str, str]:
        """The three names as their dictionaries have them."""
        return {
            "fully_qualified_namespace": self.namespace,
            "eventhub_name": self.hub,
            "consumer_group": self.group,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipRecord:
    """Who owns a partition, by their word; ``owner`` is empty if nobody does."""

    partition: str
    owner: str
    etag: str = ""
    modified_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint of theirs, as far as it says anything."""

    partition: str
    sequence_number: int | None
    offset: str | None

    @property
    def position(self) -> Position | None:
        """The same as a place of ours, which needs a sequence number."""
        if self.sequence_number is None:
            return None
        return Position(sequence_number=self.sequence_number, offset=self.offset or "")


def place_of(record: Mapping[str, object], *, stream: str = "") -> ConsumerGroup:
    """The place that a dictionary of theirs belongs to."""
    return ConsumerGroup(
        stream=stream,
        namespace=str(record.get("fully_qualified_namespace") or ""),
        hub=str(record.get("eventhub_name") or ""),
        group=str(record.get("consumer_group") or ""),
    )


def place_of_key(key: str) -> tuple[ConsumerGroup, str] | None:
    """The place and the partition of a key; None if it is not one of such a hub."""
    parts = [unquote(part) for part in key.split("/")]
    if len(parts) != _PARTS_OF_KEY or parts[0] != "partition" or "/" not in parts[1]:
        return None
    namespace, _, hub = parts[1].partition("/")
    return ConsumerGroup(namespace=namespace, hub=hub, group=parts[2]), parts[3]


def place_of_blob(name: str) -> tuple[ConsumerGroup, str, str] | None:
    """The place, the kind and the partition of a blob; None if that is no name of theirs."""
    parts = name.split("/")
    if len(parts) != _PARTS_OF_NAME or not all(parts):
        return None
    namespace, hub, group, kind, partition = parts
    return ConsumerGroup(namespace=namespace, hub=hub, group=group), kind.lower(), partition


def record_of(
    partition: str, metadata: object, *, etag: object = "", modified: object = None
) -> OwnershipRecord:
    """An ownership from the metadata of its blob, or from the dictionary of a store of theirs."""
    return OwnershipRecord(
        partition=partition,
        owner=_text(_by_plain_name(metadata).get("ownerid")),
        etag=_text(etag),
        modified_s=_seconds(modified),
    )


def stored_of(partition: str, metadata: object) -> CheckpointRecord:
    """A checkpoint from the metadata of its blob, or from the dictionary of a store of theirs."""
    found = _by_plain_name(metadata)
    return CheckpointRecord(
        partition=partition,
        sequence_number=_number(found.get("sequencenumber")),
        offset=_offset(found.get("offset")),
    )


def resume_at(position: Position) -> str | int:
    """What their clients call the offset of a checkpoint, which is all that they start from.

    Without an offset it is the sequence number: their clients take a number for one. They take 0
    for no checkpoint at all, and would skip events: then they begin at the first.
    """
    if position.offset:
        return position.offset
    return position.sequence_number if position.sequence_number > 0 else "-1"


def ownership_metadata(owner: str) -> dict[str, str]:
    """What the blob of an ownership says; an empty owner frees the partition."""
    return {"ownerid": owner}


def checkpoint_metadata(position: Position) -> dict[str, str]:
    """What the blob of a checkpoint says: always both, as text."""
    return {"offset": position.offset, "sequencenumber": str(position.sequence_number)}


def _by_plain_name(found: object) -> dict[str, object]:
    """The values by their names without casing and underscores; the later of two alike wins."""
    if not isinstance(found, Mapping):
        return {}
    return {str(name).lower().replace("_", ""): value for name, value in found.items()}


def _offset(value: object) -> str | None:
    # To their clients an offset is text; a number in its place means a sequence number.
    return _text(value) or None if isinstance(value, str) else None


def _text(value: object) -> str:
    text = "" if value is None else str(value).strip()
    return "" if text.lower() in _NOTHING else text


def _number(value: object) -> int | None:
    text = _text(value)
    # More digits than any sequence number has; int() refuses thousands of them.
    if not text.isascii() or not text.isdigit() or len(text) > len(str(2**63)):
        return None
    number = int(text)
    return number if number < 2**63 else None


def _seconds(value: object) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else 0.0
