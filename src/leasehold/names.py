"""Names and keys: which are valid, and how keys are made.

A key is ``partition/<stream>/<group>/<id>``, ``job/<name>`` or ``file/<path>``; each part is
percent-quoted, so that a slash inside a part can never make two keys equal. Everything before the
last slash is the **group**: the keys that are assigned together.
"""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import quote, unquote

from leasehold.errors import InvalidDuration, InvalidName

PARTITION = "partition"  # the first part of the groups of all streams
LONGEST_NAME = 256
LONGEST_KEY = 1024
_SAFE = "$@=+:,~!*'()"
_PLAIN = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_PART_OF_ID = 40
_LONGEST_SHOWN = 80


def check_name(name: object, *, what: str) -> str:
    """Return ``name`` unchanged.

    Raises:
        InvalidName: it is empty, too long, or has characters that cannot be printed.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{what} must be text, not {name!r}: write {str(name)!r}")
    if not name:
        raise InvalidName(f"{what} is empty: give it a name of 1 to {LONGEST_NAME} characters")
    if len(name) > LONGEST_NAME:
        raise InvalidName(
            f"{what} has {len(name)} characters and may have {LONGEST_NAME} at most: {name[:40]!r}…"
        )
    if not name.isprintable() or name != name.strip():
        raise InvalidName(
            f"{what} {name!r} has characters that can not be shown, or spaces at its ends: "
            "use printable characters"
        )
    return name


def check_key(key: object) -> str:
    """Return ``key`` unchanged.

    Raises:
        InvalidName: it is not a valid key: no slash, an empty part, too long, or not printable.
    """
    if not isinstance(key, str) or "/" not in key or not _is_path(key):
        raise InvalidName(
            f"{_short(key)} is no key: write two or more non-empty parts with slashes between, "
            f"such as job/nightly, of {LONGEST_KEY} printable characters at most"
        )
    return key


def check_group(group: str) -> str:
    """Return ``group`` unchanged: one or more parts of a key.

    Raises:
        InvalidName: it could not be the first part of a key.
    """
    if not _is_path(group) or len(group) > LONGEST_KEY - len("/x"):
        raise InvalidName(
            f"{_short(group)} is no group: write one or more non-empty parts with slashes "
            "between, such as partition/orders/billing, in printable characters"
        )
    return group


def partition_group(stream: str, group: str) -> str:
    """Return the group of all partitions of ``stream`` for the consumers called ``group``."""
    stream = _quoted(check_name(stream, what="stream"))
    return f"{PARTITION}/{stream}/{_quoted(check_name(group, what='group'))}"


def partition_key(stream: str, group: str, partition_id: str) -> str:
    """Return the key of one partition of ``stream`` for one group of consumers.

    Raises:
        InvalidName: a part is not a valid name, or the key is too long when quoted.
    """
    partition = _quoted(check_name(partition_id, what="partition"))
    return check_key(f"{partition_group(stream, group)}/{partition}")


def stream_directory(stream: str) -> str:
    """Return the directory of all segments of a stream of the log, quoted as in a key."""
    return f"/{_quoted(stream)}"


def job_key(name: str) -> str:
    """Return the key of a job.

    Raises:
        InvalidName: it is not a valid name, or too long when quoted.
    """
    return check_key(f"job/{_quoted(check_name(name, what='job'))}")


def group_of(key: str) -> str:
    """Return the group of a key: everything before its last slash."""
    return key.rpartition("/")[0]


def last_part(key: str) -> str:
    """Return the partition id or job name inside a key, as the user wrote it."""
    return unquote(key.rpartition("/")[2])


def in_order(partition: str) -> tuple[bool, int, str]:
    """Return the sort key of a partition: numbers as numbers, then all other names."""
    is_number = partition.isascii() and partition.isdigit()
    return (not is_number, int(partition) if is_number else 0, partition)


def holder_id(name: str, *, host: str, suffix: str) -> str:
    """Return a readable id, unique per incarnation by ``suffix``: ``name-host-xxxxxxxx``."""
    check_name(name, what="holder name")
    return f"{_id_part(name)}-{_id_part(host)}-{suffix}"


def seconds_of(duration: object, *, what: str, min_s: float, max_s: float) -> float:
    """Return the duration in seconds.

    Raises:
        InvalidDuration: it is outside ``min_s`` to ``max_s``, which the message names.
    """
    if not isinstance(duration, timedelta):
        raise InvalidDuration(
            f"{what} must be a timedelta, such as timedelta(seconds=10), not {duration!r}"
        )
    seconds = duration.total_seconds()
    if not min_s <= seconds <= max_s:
        raise InvalidDuration(
            f"{what} is {seconds:g} s and must lie between {min_s:g} s and {max_s:g} s"
        )
    return seconds


def _is_path(text: str) -> bool:
    return len(text) <= LONGEST_KEY and text.isprintable() and all(text.split("/"))


def _short(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


def _quoted(part: str) -> str:
    # A single dot would be a path step in a file system or a URL: quote a leading dot.
    text = quote(part, safe=_SAFE)
    return "%2E" + text[1:] if text.startswith(".") else text


def _id_part(text: str) -> str:
    return _PLAIN.sub("_", text).strip("_")[:_LONGEST_PART_OF_ID] or "x"
