"""A Parquet directory and its rows in the store: which files in it are committed.

The file ``_leasehold.json`` in the directory names the sink and the store, without secrets. The
directory may be moved: the paths in the manifest are relative to it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from leasehold.clock import new_suffix, new_token
from leasehold.errors import SinkChanged, UsageError
from leasehold.spark.sinks.commit_ledger import ledger_queries, sql_of
from leasehold.spark.sinks.directory import POINTER, make, told
from leasehold.spark.sinks.parquet.files import sync_directory
from leasehold.stores.blocking import open_blocking
from leasehold.stores.sqlite.location import path_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.clock import Clock
    from leasehold.stores.blocking import BlockingDatabase, Tx

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """What the directory says of itself."""

    sink: str
    store: str


@cache
def queries() -> Mapping[str, str]:
    """All statements that a Parquet sink needs."""
    return MappingProxyType({**ledger_queries(), **sql_of("manifest.sql")})


def directory_of(path: str | os.PathLike[str]) -> Path:
    """The directory as an absolute path.

    Raises:
        UsageError: it is a URL of something that is no directory of this machine.
    """
    text = os.fspath(path).removeprefix("file://")
    if "://" in text:
        raise UsageError(
            f"{text!r} is no directory: the Parquet sink writes to a path that the driver and all "
            "executors see, such as a local disk or a shared file system"
        )
    return Path(text).absolute()


def open_manifest(url: str, *, clock: Clock) -> BlockingDatabase:
    """The database of the store, ready.

    Raises:
        UnknownStore, StoreUnavailable, StoreUnusable: see ``open_blocking``.
    """
    return open_blocking(url, queries=queries(), clock=clock, guard="guard")


def without_secrets(url: str, database: BlockingDatabase) -> str:
    """The store's URL as it may lie beside the data, good from any working directory."""
    if urlsplit(url).scheme.lower() == "sqlite":
        return "sqlite:///" + quote(str(Path(path_of(url)).absolute()), safe="/")
    return database.url


def read_pointer(directory: Path) -> Pointer | None:
    """What the directory says of itself; None if it says nothing.

    Raises:
        SinkChanged: it says something that nobody understands.
    """
    path = directory / POINTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise SinkChanged(f"{path} was written by a newer Leasehold: upgrade this one")
        return Pointer(sink=str(found["sink"]), store=str(found["store"]))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise SinkChanged(
            f"{path} can not be read ({error}): it names the sink and its store; bring it back "
            "from a backup"
        ) from error


def write_pointer(directory: Path, pointer: Pointer) -> None:
    """Say it, whole or not at all."""
    text = json.dumps({"format": _FORMAT, "sink": pointer.sink, "store": pointer.store}, indent=2)
    draft = directory / f".{POINTER}.{new_suffix()}"
    with draft.open("x", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / POINTER)
    sync_directory(directory)


def settle(directory: Path, database: BlockingDatabase, store: str) -> str:
    """The id of the sink in this directory; the first that asks makes it a sink.

    Raises:
        SinkUnfit: the directory can not be made or written.
        SinkChanged: the directory and the store do not belong together.
    """
    name = f"parquet:{directory}"
    make(directory, sink=name)
    pointer = read_pointer(directory)
    if pointer is not None:
        if database.read(lambda tx: tx.one("home_get", sink=pointer.sink)) is None:
            raise unknown_here(directory, pointer, database)
        return pointer.sink
    place = str(directory.resolve())

    def step(tx: Tx) -> tuple[str, bool]:
        tx.run("home_put", sink=fresh, place=place, wall=tx.wall)
        (sink,) = tx.one("home_at", place=place) or (fresh,)
        return sink, tx.one("home_used", sink=sink) is not None

    fresh = new_token()
    sink, used = database.write(step)
    if used and read_pointer(directory) is None:
        raise SinkChanged(
            f"{directory} was emptied or made anew: {database.url} knows of commits to it, and "
            f"{POINTER} is not in it. Bring the directory back, or write to another one"
        )
    with told(name, "written"):
        write_pointer(directory, Pointer(sink=sink, store=store))
    return str(sink)


def unknown_here(directory: Path, pointer: Pointer, database: BlockingDatabase) -> SinkChanged:
    """For a store that has never heard of this directory."""
    return SinkChanged(
        f"{directory} is a sink whose manifest lies in {pointer.store}, and {database.url} does "
        "not know it: give the store it was written with, or write to another directory"
    )
