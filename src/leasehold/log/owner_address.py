"""Where the sockets of partition owners are, and which addresses in the journal are used.

Any user of the store can write an address into the journal. So only the sockets of this user are
used: in a directory that this process has computed and not read, which belongs to the user, which
no one else may enter, and which is no symbolic link. Both ends of a connection compare the user of
the other end, as the kernel reports it. Nothing else is connected to or removed.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.clock import boot_id, host_name
from leasehold.errors import StoreUnusable
from leasehold.log.producer_batch import OwnerGone
from leasehold.runtime.private_files import make_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.files.model import FileStatus

SCHEME = "unix:"
_PRIVATE = 0o700
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SOCKET_NAME = re.compile(r"[A-Za-z0-9_-]+\.sock")
_BOOT_DIGITS = 12
_BOOT = re.compile(r"[0-9a-f]{12}")
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class AddressRefused(StoreUnusable):
    """An address in the journal does not name a socket of this user; nothing was done with it."""


def socket_directories(configured: str) -> tuple[str, ...]:
    """Return where sockets of this user may be; the first is where this process makes its own.

    A service and a shell of one user may have different environments, and find each other.
    """
    user = os.geteuid()
    bases = (configured, os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}")
    every = [base for base in bases if base and (base == configured or Path(base).is_dir())]
    return tuple(
        f"{Path(base).resolve()}/leasehold-{user}" for base in (*every, tempfile.gettempdir())
    )


def address_in(directory: str, *, name: str) -> str:
    """Return the address of a socket of this machine, ``name``; make its directory if needed."""
    parent = Path(socket_directories(directory)[0])
    path = parent / f"{_this_boot()}-{name}.sock"
    try:
        make_directories(parent.parent)
        parent.mkdir(mode=_PRIVATE, exist_ok=True)  # never for a group
        with _private_directory(str(parent)):
            return f"{SCHEME}{path}"
    except OSError as error:
        raise StoreUnusable(
            f"no socket can be made in {parent} ({error}): give a socket_directory in LogOptions"
        ) from error


def is_own_address(address: str, directories: tuple[str, ...]) -> bool:
    """Return whether an address from the journal names a socket in one of these directories."""
    directory, _, name = address.removeprefix(SCHEME).rpartition("/")
    return (
        address.startswith(SCHEME)
        and directory in directories
        and _SOCKET_NAME.fullmatch(name) is not None
    )


def is_on_this_machine(owner: FileStatus) -> bool:
    """Return whether the owner of an open segment runs here, by its host name and its address.

    Host names are not unique: the address says under which boot id the owner runs. An address of an
    older version, or of no log, does not say it.
    """
    boot = _boot_of(owner.address.rpartition("/")[2])
    return owner.host == host_name() and boot in {"", _this_boot()}


def _boot_of(name: str) -> str:
    """Return the part of the boot id that is in the name of a socket; empty: none."""
    first, dash, _ = name.rpartition("-")
    return first if dash and _BOOT.fullmatch(first) else ""


def _this_boot() -> str:
    return boot_id().replace("-", "")[:_BOOT_DIGITS]


def listen_at(listening: socket.socket, address: str, *, backlog: int) -> None:
    """Bind a socket to an address of this process, and listen there; raises ``OSError``.

    Under its name it listens from the first moment: a process that is refused there removes it.
    """
    directory, _, name = address.removeprefix(SCHEME).rpartition("/")
    with _private_directory(directory) as folder:
        # By the descriptor: a path of a socket is short, and a directory may be deep.
        listening.bind(f"/proc/self/fd/{folder}/{name}.new")
        listening.listen(backlog)
        os.rename(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)


def connect_to_owner(connection: socket.socket, address: str) -> None:
    """Connect to a socket of this user; remove it if its process has crashed.

    Raises:
        OwnerGone: no process listens there.
        AddressRefused: it is not a socket of this user, or its process is not.
        OSError: it cannot be connected to for another reason.
    """
    directory, _, name = address.removeprefix(SCHEME).rpartition("/")
    if not address.startswith(SCHEME) or not _SOCKET_NAME.fullmatch(name):
        raise _refused(address, "it is not one that Leasehold makes")
    try:
        with _private_directory(directory) as folder:
            # By the descriptor: a directory that was exchanged since is not followed.
            if not _is_own_socket(name, folder):
                raise _refused(address, "it is not a socket of this user")
            try:
                connection.connect(f"/proc/self/fd/{folder}/{name}")
            except ConnectionRefusedError as error:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)  # left by a crashed process
                raise OwnerGone(f"no process listens at {address}") from error
    except FileNotFoundError as error:
        raise OwnerGone(f"no process listens at {address}") from error
    except PermissionError as error:
        raise _refused(address, "it runs as another user") from error
    if not is_same_user(connection):
        raise _refused(address, "it runs as another user")


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket runs as this user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1]) == os.geteuid()


def remove_stale_sockets(directory: str) -> None:
    """Remove the sockets of crashed processes of this user, which refuse connections."""
    with _private_directory(directory) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - by its descriptor
            # Of another machine nothing is known: the directory may be on a shared file system.
            if not _SOCKET_NAME.fullmatch(name) or _boot_of(name) not in {"", _this_boot()}:
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.setblocking(False)
                try:
                    if _is_own_socket(name, folder):
                        connection.connect(f"/proc/self/fd/{folder}/{name}")
                except ConnectionRefusedError:
                    with suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                except OSError:
                    continue  # alive and busy, or gone in the meantime


@contextmanager
def _private_directory(path: str) -> Iterator[int]:
    """Open a directory that belongs to this user alone; ``AddressRefused`` if it does not."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(path, flags)
    except (NotADirectoryError, PermissionError) as error:
        raise _open_to_others(path) from error
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & _OF_OTHERS:
            raise _open_to_others(path)
        yield folder
    finally:
        os.close(folder)


def _is_own_socket(name: str, folder: int) -> bool:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _open_to_others(path: str) -> AddressRefused:
    return AddressRefused(
        f"{path} is not a directory of this user alone, or it is open to other users: remove it, "
        "or give a socket_directory in LogOptions"
    )


def _refused(address: str, why: str) -> AddressRefused:
    return AddressRefused(
        f"the owner of the partition is to be at {address}, and that is not used: {why}. Producers "
        "of one partition run as the same user. The partition can be taken over when its lease has "
        "ended."
    )
