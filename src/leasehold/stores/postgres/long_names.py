"""Short names for keys and groups that are too long for an index of PostgreSQL.

An index entry takes some 2,700 bytes; a key of 1,024 characters may take 4,096. A part that is too
long is stored as its beginning and a hash, with a control character between them that no real name
can have. The server stores the full name beside it and answers with that, so only what is sent has
to be shortened. Nearly all names are stored unchanged.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HASH_SEPARATOR = "\x01"
_LONGEST_PART_BYTES = 400
_MAX_BYTES_OF_A_LETTER = 4
_KEPT_LETTERS = 60


def id_of_key(key: str) -> str:
    """Return the stored id of a key. Its group is stored by ``id_of_group``: SQL can split it."""
    group, slash, last = key.rpartition("/")
    return f"{id_of_group(group)}{slash}{id_of_group(last)}"


def id_of_group(group: str) -> str:
    """Return the stored id of a group."""
    if len(group) * _MAX_BYTES_OF_A_LETTER <= _LONGEST_PART_BYTES:
        return group
    code = group.encode("utf-8", "surrogatepass")
    if len(code) <= _LONGEST_PART_BYTES:
        return group
    return f"{group[:_KEPT_LETTERS]}{HASH_SEPARATOR}{hashlib.sha256(code).hexdigest()}"


def long_name_columns(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the pairs of id and full name that differ, as one array for each column."""
    long = [(short, name) for short, name in names if short != name]
    return {"ids": [short for short, _ in long], "names": [name for _, name in long]}
