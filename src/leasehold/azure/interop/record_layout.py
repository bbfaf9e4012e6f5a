"""How Azure's Event Hubs clients store their records: names, metadata, and what is found in them.

Pure functions. They write exactly what Azure's clients write, and read everything that any of them
has ever written; no record is so malformed that reading it raises:

==============================================  ===========================================
found                                           read as
==============================================  ===========================================
``ownerid`` in any casing (C++: ``ownerId``)    the owner
no ``ownerid``, or an empty one                 no owner
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

# What Azure's clients begin with where there is no checkpoint yet.
BEGINNING = Position(sequence_number=-1, offset="-1")

_NOTHING = frozenset(("", "none", "null", "no offset"))
_PARTS_OF_NAME = 5
_PARTS_OF_KEY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """One consumer group of one hub, as Azure's calls name it.

    To Leasehold the hub is the stream ``namespace/hub``. Azure's Python, .NET and JS clients
    lower-case all names, so the keys do too: other spellings mean the same group. With a ``stream``
    the keys are those of Leasehold hosts that read it, to the letter.
    """

    namespace: str
    hub: str
    group: str
    stream: str = ""

    @property
    def keys_group(self) -> str:
        """The group of all keys of this consumer group."""
        return partition_group(*self._ours())

    def key(self, partition: str) -> str:
        """Return the key of one partition."""
        return partition_key(*self._ours(), partition)

    def _ours(self) -> tuple[str, str]:
        if self.stream:
            return self.stream, self.group
        return f"{self.namespace}/{self.hub}".lower(), self.group.lower()

    def prefix(self, kind: Kind, *, lower: bool = True) -> str:
        """Return the prefix of all blobs of this kind."""
        prefix = f"{self.namespace}/{self.hub}/{self.group}/{kind}/"
        return prefix.lower() if lower else prefix

    def blob_name(self, kind: Kind, partition: str, *, lower: bool = True) -> str:
        """Return the name of one blob."""
        name = f"{self.prefix(kind, lower=False)}{partition}"
        return name.lower() if lower else name

    def ids(self) -> dict[str, str]:
        """Return the three names as Azure's dictionaries have them."""
        return {
            "fully_qualified_namespace": self.namespace,
            "eventhub_name": self.hub,
            "consumer_group": self.group,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipRecord:
    """Who owns a partition, by Azure's records; ``owner`` is empty if no client does."""

    partition: str
    owner: str
    etag: str = ""
    modified_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint of Azure's clients, as far as it can be read."""

    partition: str
    sequence_number: int | None
    offset: str | None

    @property
    def position(self) -> Position | None:
        """The position, which needs a sequence number."""
        if self.sequence_number is None:
            return None
        return Position(sequence_number=self.sequence_number, offset=self.offset or "")


def consumer_group_of(record: Mapping[str, object], *, stream: str = "") -> ConsumerGroup:
    """Return the consumer group that a dictionary of Azure names."""
    return ConsumerGroup(
        stream=stream,
        namespace=str(record.get("fully_qualified_namespace") or ""),
        hub=str(record.get("eventhub_name") or ""),
        group=str(record.get("consumer_group") or ""),
    )


def consumer_group_of_key(key: str) -> tuple[ConsumerGroup, str] | None:
    """Return the consumer group and partition of a key; None if it has none."""
    parts = [unquote(part) for part in key.split("/")]
    if len(parts) != _PARTS_OF_KEY or parts[0] != "partition" or "/" not in parts[1]:
        return None
    namespace, _, hub = parts[1].partition("/")
    return ConsumerGroup(namespace=namespace, hub=hub, group=parts[2]), parts[3]


def consumer_group_of_blob(name: str) -> tuple[ConsumerGroup, str, str] | None:
    """Return the consumer group, kind and partition of a blob; None if it has none."""
    parts = name.split("/")
    if len(parts) != _PARTS_OF_NAME or not all(parts):
        return None
    namespace, hub, group, kind, partition = parts
    return ConsumerGroup(namespace=namespace, hub=hub, group=group), kind.lower(), partition


def parse_ownership(
    partition: str, metadata: object, *, etag: object = "", modified: object = None
) -> OwnershipRecord:
    """Parse an ownership from blob metadata, or from a dictionary of Azure."""
    return OwnershipRecord(
        partition=partition,
        owner=_text(_by_plain_name(metadata).get("ownerid")),
        etag=_text(etag),
        modified_s=_seconds(modified),
    )


def parse_checkpoint(partition: str, metadata: object) -> CheckpointRecord:
    """Parse a checkpoint from blob metadata, or from a dictionary of Azure."""
    found = _by_plain_name(metadata)
    return CheckpointRecord(
        partition=partition,
        sequence_number=_number(found.get("sequencenumber")),
        offset=_offset(found.get("offset")),
    )


def azure_offset(position: Position) -> str | int:
    """Return the offset that Azure's clients start from.

    Without an offset it is the sequence number: the clients take a number for one. They take 0 for
    no checkpoint at all, and would skip events: then they begin at the first.
    """
    if position.offset:
        return position.offset
    return position.sequence_number if position.sequence_number > 0 else "-1"


def ownership_metadata(owner: str) -> dict[str, str]:
    """Return the metadata of an ownership; an empty owner frees the partition."""
    return {"ownerid": owner}


def checkpoint_metadata(position: Position) -> dict[str, str]:
    """Return the metadata of a checkpoint: always both fields, as text."""
    return {"offset": position.offset, "sequencenumber": str(position.sequence_number)}


def _by_plain_name(found: object) -> dict[str, object]:
    """Return the values by name, without case and underscores; of two alike the later wins."""
    if not isinstance(found, Mapping):
        return {}
    return {str(name).lower().replace("_", ""): value for name, value in found.items()}


def _offset(value: object) -> str | None:
    # To Azure's clients an offset is text; a number instead of it means a sequence number.
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
