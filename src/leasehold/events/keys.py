"""What a key decides: the partition of an event, and its hash in the index.

Both are based on the CRC32C of the key's UTF-8 bytes and are part of the format: the same key gives
the same numbers in every process, on every machine, in every version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MASK = 0xFFFF_FFFF


def key_hash(key: str) -> int:
    """Return the 32-bit hash of a key, as the index keeps it."""
    try:
        return crc32c(key.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise UsageError(f"a key is text that UTF-8 can hold, not {key!r}: give a str") from error


def partition_of(key: str, partitions: int) -> int:
    """Return the partition, from 0, that events with this key belong to.

    Raises:
        UsageError: there are no partitions, or the key is not text.
    """
    if partitions < 1:
        raise UsageError(f"a stream has at least one partition, not {partitions}")
    return _partition_of_hash(key_hash(key), partitions)


def sorted_hashes(keys: Iterable[pa.Array]) -> list[int]:
    """Return the hashes of all keys in these columns, each once, in ascending order."""
    chunks = list(keys)
    if not chunks:
        return []
    unique = pc.unique(pa.chunked_array(chunks)).drop_null()
    return sorted(set(map(crc32c, unique.cast(pa.binary()).to_pylist())))


def split_by_key(
    batch: pa.RecordBatch, partitions: int, *, keyless: int = 0
) -> dict[int, pa.RecordBatch]:
    """Split ``batch`` by partition, rows in their order; rows without a key go to ``keyless``.

    Each different key is hashed once, and each row is moved once.
    """
    if not 0 <= keyless < partitions:
        raise UsageError(
            f"events without a key were sent to partition {keyless}, and there are {partitions}: "
            "choose one from 0 up to their number less one"
        )
    coded = batch.column("key").dictionary_encode()
    hashes = map(crc32c, coded.dictionary.cast(pa.binary()).to_pylist())
    partition_numbers = pa.array(
        [_partition_of_hash(each, partitions) for each in hashes], pa.int32()
    )
    rows = partition_numbers.take(coded.indices).fill_null(keyless)
    counts = pc.value_counts(rows).to_pylist()
    if len(counts) <= 1:
        return {each["values"]: batch for each in counts}
    ordered = batch.take(pc.array_sort_indices(rows))  # stable: each partition keeps its order
    split, start = {}, 0
    for each in sorted(counts, key=lambda count: count["values"]):
        split[each["values"]] = ordered.slice(start, each["counts"])
        start += each["counts"]
    return split


def _partition_of_hash(mixed: int, partitions: int) -> int:
    # A CRC is linear: its low bits say little about keys that differ in one digit. The finalizer
    # of MurmurHash3 spreads them, and the product takes the high bits, fair for any number.
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EB_CA6B) & _MASK
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2_AE35) & _MASK
    mixed ^= mixed >> 16
    return (mixed * partitions) >> 32
