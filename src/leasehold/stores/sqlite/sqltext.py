"""The SQL of this store, read from the ``.sql`` files beside it."""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


@cache
def queries() -> Mapping[str, str]:
    """Every statement of ``queries.sql``, by its name."""
    _, *parts = _NAME.split(_folder().joinpath("queries.sql").read_text(encoding="utf-8"))
    return MappingProxyType(dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True)))


@cache
def migrations() -> Mapping[int, str]:
    """The text of each migration, by its number, in order."""
    found = {
        int(match[1]): path.read_text(encoding="utf-8")
        for path in _folder().iterdir()
        if (match := _MIGRATION.fullmatch(path.name))
    }
    return MappingProxyType(dict(sorted(found.items())))


def statements(text: str) -> Iterator[str]:
    """The single statements of a script: the driver's own way to run one would commit first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _folder() -> Traversable:
    return files(__package__).joinpath("sql")
