"""``leasehold hub``: let the clients of Event Hubs use the streams of a log."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import leasehold.azure
import leasehold.log
from leasehold.cli.common import (
    DatabaseUrl,
    command_hints,
    counted,
    duration,
    store_url,
)
from leasehold.cli.tables import err
from leasehold.errors import UsageError
from leasehold.printable import printable
from leasehold.runtime.private_files import make_directories

if TYPE_CHECKING:
    from leasehold.azure import HubOptions, HubServer, SasKeys
    from leasehold.log import Log

EXAMPLE = "leasehold hub --log data --create orders=4 --port 5672"
KEYS_VARIABLE = "LEASEHOLD_HUB_KEYS"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOG_FILES = 1024  # that the log may have open, beside the connections
# What Event Hubs allows; a log may have streams of other names.
_HUB_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST_HUB = 256
_LOOPBACK = ("127.", "localhost", "::1")

LogLocation = Annotated[
    str | None,
    typer.Option(
        "--log",
        help="A directory for all of it, made if it is new; or the store's URL, as --store.",
        metavar="PATH|URL",
        show_default=False,
    ),
]
Volumes = Annotated[
    list[Path] | None,
    typer.Option(help="A directory to keep data in; give one for each disk.", metavar="DIR"),
]
SasKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Who may use it, instead of a new key; or {KEYS_VARIABLE}, with spaces between "
        "several, which others on this machine can not read.",
        metavar="NAME=KEY",
    ),
]
Creates = Annotated[
    list[str] | None,
    typer.Option(help="Make a hub, if there is none of this name.", metavar="NAME=PARTITIONS"),
]
MaxUnauthenticated = Annotated[
    int,
    typer.Option(
        help="Maximum number of connections without a valid token; the oldest is dropped.",
        min=1,
        max=65535,
        metavar="N",
    ),
]
MaxUnauthenticatedPerAddress = Annotated[
    int,
    typer.Option(
        help="The same for the connections from one address.", min=1, max=65535, metavar="N"
    ),
]
HandshakeTimeout = Annotated[
    str,
    typer.Option(help="Time for a connection to bring a valid token.", metavar="DURATION"),
]
Cert = Annotated[Path | None, typer.Option(help="A certificate (PEM): serve TLS.", metavar="FILE")]
CertKey = Annotated[Path | None, typer.Option(help="Its private key (PEM).", metavar="FILE")]


def hub(
    *,
    log: LogLocation = None,
    host: Annotated[str, typer.Option(help="Where to listen.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="0 is any that is free.", min=0, max=65535, metavar="N")
    ] = 5672,
    sas_key: SasKeyOption = None,
    create: Creates = None,
    volume: Volumes = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    max_connections: Annotated[
        int, typer.Option(help="Maximum number of connections.", min=1, max=65535, metavar="N")
    ] = 2000,
    max_unauthenticated: MaxUnauthenticated = 200,
    max_unauthenticated_per_address: MaxUnauthenticatedPerAddress = 100,
    handshake_timeout: HandshakeTimeout = "30s",
    store: DatabaseUrl = None,
) -> None:
    """Let the clients of Azure Event Hubs use the streams of a log: a hub is a stream.

    The connection string to use is printed: with its key if that is a new one, which is never shown
    again. Ctrl-C or SIGTERM ends it in good order: what was accepted is stored.
    """
    wanted = dict(map(_created, create or ()))
    given = sas_key or os.environ.get(KEYS_VARIABLE, "").split()
    options = leasehold.azure.HubOptions(
        host=host,
        port=port,
        keys=leasehold.azure.SasKeys.parse(given),
        tls=_tls(cert, cert_key),
        max_connections=max_connections,
        max_unauthenticated=max_unauthenticated,
        max_unauthenticated_per_address=max_unauthenticated_per_address,
        handshake_timeout=duration(
            handshake_timeout, option="--handshake-timeout", at_least="50ms", at_most="1h"
        ),
    )
    _allow_files(max_connections + _LOG_FILES)
    with _opened(log, store, volume or ()) as opened:
        _make(opened, wanted)
        asyncio.run(_serve(opened, options, is_new_key=not given))


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files: connections must not leave the log without any."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        err.print(
            f"only {allowed} files may be open here: give --max-connections "
            f"{max(allowed - _LOG_FILES, 1)}, or raise the limit (ulimit -n)"
        )


def _make(opened: Log, wanted: dict[str, int]) -> None:
    """Create the hubs that do not exist yet."""
    there = {each.name: each.partitions for each in opened.streams()}
    for name, partitions in wanted.items():
        if name not in there:
            opened.create(name, partitions=partitions)
        elif there[name] != partitions:
            err.print(f"{name} is there with {counted(there[name], 'partition')}, and stays so")


async def _serve(opened: Log, options: HubOptions, *, is_new_key: bool) -> None:
    """Serve until a signal comes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
            loop.add_signal_handler(each, stop.set)
    async with leasehold.azure.HubServer(opened, options) as server:
        hubs = [each.name for each in opened.streams()]
        address = ":".join(map(str, server.address))
        names = f" ({', '.join(hubs)})" if hubs else ": --create NAME=PARTITIONS makes one"
        err.print(f"{counted(len(hubs), 'hub')} at {address}{names}; Ctrl-C ends it")
        if options.tls is None and not options.host.startswith(_LOOPBACK):
            err.print("others can read what goes over the network: give --cert for TLS")
        if server.listens_everywhere:
            err.print(
                "it listens at all addresses of this machine; clients are given its name, "
                f"{server.client_host}: write another one if they know it by that"
            )
        typer.echo(printable(_shown(server, options.keys, is_new=is_new_key), keep="\n"))
        await stop.wait()
        err.print("asked to stop: what was accepted is stored, all are told")
    err.print("left in good order")


def _shown(server: HubServer, keys: SasKeys, *, is_new: bool) -> str:
    """Return the connection string; a key that was given is not shown again."""
    text = server.connection_string()
    if is_new:
        return text
    name, secret = next(iter(keys.keys.items()))
    return text.replace(f"SharedAccessKey={secret};", f"SharedAccessKey=<the key of {name}>;")


def _created(text: str) -> tuple[str, int]:
    name, mark, number = text.partition("=")
    if not mark or not name or not (number.isascii() and number.isdigit()):
        raise UsageError(f"--create {text!r}: write NAME=PARTITIONS, such as orders=4")
    if "/" in name or name.startswith("$"):
        raise UsageError(
            f"--create {text!r}: clients could not name such a hub in an address; choose a name "
            "without / and without $ in front"
        )
    if len(name) > _LONGEST_HUB or not _HUB_NAME.fullmatch(name):
        raise UsageError(
            f"--create {text!r}: no event hub has such a name, and clients may refuse it; take "
            f"letters, digits, '.', '-' and '_', at most {_LONGEST_HUB}, with a letter or digit at "
            "both ends"
        )
    return name, int(number)


def _tls(cert: Path | None, cert_key: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if cert_key is not None:
            raise UsageError("--cert-key is there without --cert: give both, or none")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, cert_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--cert {cert} can not be used: {error}; give a certificate in PEM, and with "
            "--cert-key its private key, unless that is in the same file"
        ) from error
    return context


@contextmanager
def _opened(log: str | None, store: str | None, volumes: list[Path] | tuple[()]) -> Iterator[Log]:
    """Open the log: a directory that has everything, or a store and its volumes."""
    if not log and not store:
        raise UsageError(
            "which log? Give --log DIR, which is made if it is new, or --store URL of a log"
        )
    if log and "://" not in log:
        store, volumes = _in_directory(Path(log), volumes)
    else:
        store = log or store
    url = store_url(store, make=True)
    with (
        command_hints(),
        leasehold.log.Log.open(url, volumes=list(volumes), name="hub") as opened,
    ):
        yield opened


def _in_directory(directory: Path, volumes: list[Path] | tuple[()]) -> tuple[str, list[Path]]:
    """Return the store and the volume in a directory, which is made if it is new."""
    if volumes:
        raise UsageError(
            f"--log {directory} is a directory with a volume of its own: leave --volume out, or "
            "give the store with --store instead of --log"
        )
    try:
        make_directories(directory)
    except OSError as error:
        raise UsageError(
            f"--log {directory} can not be a directory: {error.strerror}; choose another one"
        ) from error
    return f"sqlite:///{directory / 'log.db'}", [directory / "volume"]


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog=EXAMPLE)(hub)
