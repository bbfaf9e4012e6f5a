"""Addresses in the journal come from any user of the store: only our own sockets are used."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from leasehold.clock import SystemClock, boot_id
from leasehold.errors import FileHeld, StoreUnusable
from leasehold.events import Event
from leasehold.files import FileOptions, Namespace
from leasehold.log import Log, LogOptions, owner_link
from leasehold.log.owner_address import (
    AddressRefused,
    address_in,
    connect_to_owner,
    is_own_address,
    is_same_user,
    remove_stale_sockets,
    socket_directories,
)
from leasehold.log.producer_batch import OwnerGone
from leasehold.log.streams import segment_path

SOON_S = 120
USER = os.geteuid()


class LateClock(SystemClock):
    """The machine's clock; everything that happened before is long ago when ``late_s`` is set."""

    late_s = 0.0

    def boottime_s(self) -> float:
        return super().boottime_s() + self.late_s


@pytest.fixture
def clock() -> LateClock:
    return LateClock()


@pytest.fixture
def log(tmp_path: Path, clock: LateClock) -> Iterator[Log]:
    url = f"sqlite:///{tmp_path}/log.db"
    options = LogOptions(
        socket_directory=str(tmp_path),
        run_monitor=False,
        files=FileOptions(recovery_timeout=timedelta(seconds=15)),
    )
    with Log.open(url, volumes=[tmp_path / "a"], options=options, clock=clock) as opened:
        opened.create("orders", partitions=1)
        yield opened


@contextmanager
def held_by_stranger(log: Log, address: str) -> Iterator[None]:
    """Another user of the store writes the partition, and gives this address."""
    stranger = Namespace.open(log.files.url, name="stranger", address=address, run_monitor=False)
    stranger.create(segment_path("orders", 0, 0))
    try:
        yield
    finally:
        stranger.close()


def send(log: Log, body: bytes) -> None:
    with log.producer("orders") as producer:
        producer.send(Event(body=body)).result(SOON_S)


def bodies(log: Log) -> list[bytes]:
    with log.reader("orders", 0) as reader:
        return [event.body for batch in reader.batches() for event in batch]


def own_directory(log: Log, tmp_path: Path) -> Path:
    directory = tmp_path / f"leasehold-{USER}"
    assert directory.is_dir()
    return directory


def test_an_address_elsewhere_is_named_and_neither_removed_nor_connected_to(
    log: Log, tmp_path: Path, clock: LateClock
) -> None:
    victim = tmp_path / "b" / f"leasehold-{USER}" / "keys.sock"
    victim.parent.mkdir(mode=0o700, parents=True)
    victim.write_text("a file that only looks like a dead socket")
    with held_by_stranger(log, f"unix:{victim}"):
        with pytest.raises(FileHeld, match="is not used") as refused:
            send(log, b"a")
        assert str(victim) in str(refused.value)
        assert refused.value.address == f"unix:{victim}"
    assert victim.read_text()
    clock.late_s = 3600.0  # the stranger is silent: its lease has ended
    send(log, b"a")
    assert bodies(log) == [b"a"]
    assert victim.read_text()


def test_events_are_not_sent_to_a_socket_elsewhere(log: Log, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(trap))
        listening.listen()
        listening.setblocking(False)
        with held_by_stranger(log, f"unix:{trap}"), pytest.raises(FileHeld, match="is not used"):
            send(log, b"secret")
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a_file_in_our_directory_that_is_no_socket_is_left_and_taken_over_by_lease(
    log: Log, tmp_path: Path, clock: LateClock
) -> None:
    directory = own_directory(log, tmp_path)
    aimed = tmp_path / "aimed"
    aimed.write_text("kept")
    for name in ("file.sock", "link.sock"):
        path = directory / name
        path.write_text("kept") if name == "file.sock" else path.symlink_to(aimed)
    with (
        held_by_stranger(log, f"unix:{directory}/file.sock"),
        pytest.raises(StoreUnusable, match=r"file\.sock, and that is not used"),
    ):
        send(log, b"a")
    clock.late_s = 3600.0
    send(log, b"a")
    assert bodies(log) == [b"a"]
    assert (directory / "file.sock").read_text() == "kept"
    assert (directory / "link.sock").read_text() == "kept"


def test_the_socket_of_a_crashed_owner_is_removed_and_its_partition_taken_over(
    log: Log, tmp_path: Path
) -> None:
    dead = own_directory(log, tmp_path) / "dead.sock"
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(dead))
    with held_by_stranger(log, f"unix:{dead}"):
        send(log, b"a")
    assert not dead.exists()
    assert bodies(log) == [b"a"]


@pytest.mark.parametrize(
    "address",
    [
        "unix:{own}/../leasehold-x/a.sock",
        "unix:{own}/sub/a.sock",
        "unix:{own}/a.txt",
        "unix:{own}/..",
        "unix:{own}/",
        "unix:a.sock",
        "unix:\0abstract.sock",
        "tcp:{own}/a.sock",
        "",
    ],
)
def test_only_a_plain_name_in_our_directory_is_an_own_address(tmp_path: Path, address: str) -> None:
    directories = socket_directories(str(tmp_path))
    assert is_own_address(f"unix:{directories[0]}/a-1_B.sock", directories)
    assert not is_own_address(address.format(own=directories[0]), directories)


def test_a_directory_that_others_may_enter_or_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    address = address_in(str(tmp_path), name="a")
    directory = Path(address.removeprefix("unix:")).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as line, pytest.raises(OwnerGone):
        connect_to_owner(line, address)
    directory.chmod(0o750)
    for is_link in (False, True):
        if is_link:
            exchange_for_link(directory, directory.with_name("moved"))
        with pytest.raises(StoreUnusable, match="open to other users"):
            address_in(str(tmp_path), name="a")
        with socket.socket(socket.AF_UNIX) as line, pytest.raises(AddressRefused):
            connect_to_owner(line, address)
        with pytest.raises(AddressRefused):
            remove_stale_sockets(str(directory))


def exchange_for_link(directory: Path, moved: Path) -> None:
    directory.chmod(0o700)
    directory.rename(moved)
    directory.symlink_to(moved)


def test_both_ends_compare_the_user_of_the_other(
    log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, two = socket.socketpair()
    with one, two:
        assert is_same_user(one)
        assert is_same_user(two)
        monkeypatch.setattr(os, "geteuid", lambda: USER + 1)
        assert not is_same_user(one)
        monkeypatch.undo()
    send(log, b"a")
    with log.producer("orders") as owner:  # keeps the partition
        owner.send(Event(body=b"b")).result(SOON_S)
        address = log.files.status(segment_path("orders", 0, 0)).address
        with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SOON_S)
            patch.setattr(owner_link, "is_same_user", lambda _: False)
            connect_to_owner(line, address)
            assert line.recv(1) == b""  # the server has closed the connection
        with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as line:
            patch.setattr("leasehold.log.owner_address.is_same_user", lambda _: False)
            with pytest.raises(AddressRefused, match="runs as another user"):
                connect_to_owner(line, address)


def test_a_service_without_a_runtime_directory_is_found_by_a_shell_that_has_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    service = address_in("", name="a")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    shell = address_in("", name="b")
    boot = boot_id().replace("-", "")[:12]
    assert shell == f"unix:{tmp_path}/leasehold-{USER}/{boot}-b.sock"
    assert is_own_address(service, socket_directories(""))


def test_a_deep_directory_is_as_good_as_another(tmp_path: Path) -> None:
    """The path of a socket may have 107 bytes; it is never used as such."""
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    options = LogOptions(socket_directory=str(deep), run_monitor=False)
    url = f"sqlite:///{tmp_path}/log.db"
    with (
        Log.open(url, volumes=[tmp_path / "a"], options=options) as log,
        Log.open(url, options=options) as other,
    ):
        log.create("orders", partitions=1)
        with log.producer("orders") as here, other.producer("orders") as there:
            here.send(Event(body=b"a")).result(SOON_S)
            there.send(Event(body=b"b")).result(SOON_S)
        assert other.counts().forwarded == 1


def test_sockets_of_another_machine_in_a_shared_directory_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They refuse connections here, and are alive there."""
    directory = Path(address_in(str(tmp_path), name="a").removeprefix("unix:")).parent
    monkeypatch.chdir(directory)  # the path of a socket is short
    mine, older, theirs = (
        directory / f"{name}.sock"
        for name in (f"{boot_id().replace('-', '')[:12]}-dead", "dead", f"{'0' * 12}-alive")
    )
    for path in (mine, older, theirs):
        with socket.socket(socket.AF_UNIX) as line:
            line.bind(path.name)
    remove_stale_sockets(str(directory))
    assert [path.exists() for path in (mine, older, theirs)] == [False, False, True]
