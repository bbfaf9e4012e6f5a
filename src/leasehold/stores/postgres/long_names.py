"""Short names for keys and groups that are too long for an index of PostgreSQL.

An index entry takes some 2,700 bytes; a key of 1,024 letters may take 4,096. A part that is longer
than an index likes is kept as its beginning and a hash, with a mark between them that no real name
can have, because it can not be printed. The server keeps the full name beside it and answers with
that: only what is sent has to be shortened. All but the oddest names are kept as they are.
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
    """What a key is kept as. Its group is kept as ``id_of_group`` says, so that SQL can cut it."""
    group, slash, last = key.rpartition("/")
    return f"{id_of_group(group)}{slash}{id_of_group(last)}"


def id_of_group(group: str) -> str:
    """What a group is kept as."""
    if len(group) * _MAX_BYTES_OF_A_LETTER <= _LONGEST_PART_BYTES:
        return group
    code = group.encode("utf-8", "surrogatepass")
    if len(code) <= _LONGEST_PART_BYTES:
        return group
    return f"{group[:_KEPT_LETTERS]}{HASH_SEPARATOR}{hashlib.sha256(code).hexdigest()}"


def long_name_columns(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Of pairs of an id and its full name those that differ, as one array for each column."""
    long = [(short, name) for short, name in names if short != name]
    return {"ids": [short for short, _ in long], "names": [name for _, name in long]}
