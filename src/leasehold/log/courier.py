"""Carries parcels to the owner of a partition in another process of this machine."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError
from leasehold.log.door import SCHEME
from leasehold.log.parcel import Moved, NobodyThere, Silent
from leasehold.log.wire import Garbled, receive_reply, send_request

if TYPE_CHECKING:
    from leasehold.clock import Clock
    from leasehold.log.parcel import Stored
    from leasehold.log.wire import Request

_TIMEVAL = struct.Struct("@ll")
BEATS = 4  # so many signs of life are due in the time after which an owner counts as dead


class Courier:
    """One line to one owner at a time. For one thread."""

    def __init__(self, *, clock: Clock, answer_limit_s: float) -> None:
        """Connect to nobody yet."""
        self._clock = clock
        self.answer_limit_s = answer_limit_s
        self._address = ""
        self._line: socket.socket | None = None

    def carry(self, request: Request, *, to: str, until_s: float) -> tuple[Stored, ...]:
        """Hand parcels over and wait until they are stored.

        Raises:
            NobodyThere: nobody listens there.
            Silent: no sign came for ``answer_limit``.
            Moved: it is not the owner, or the line broke.
            StoreUnavailable: it is alive and at work, and ``until_s`` has come.
            StoreUnusable: the socket belongs to another user.
            UsageError: they can not be stored, now or later.
        """
        try:
            line = self._connected(to)
            send_request(line, request)
            return self._answer(line, until_s)
        except BlockingIOError as error:
            self.close()
            raise Silent(f"the owner at {to} gave no sign for {self.answer_limit_s:g} s") from error
        except (OSError, Garbled) as error:
            self.close()
            raise Moved(f"the line to {to} broke: {error}") from error
        except StoreUnavailable:
            self.close()
            raise

    def _answer(self, line: socket.socket, until_s: float) -> tuple[Stored, ...]:
        while True:
            reply = receive_reply(line)
            if reply.moved:
                raise Moved(reply.moved)
            if reply.refused:
                raise UsageError(reply.refused)
            if reply.stored:
                return reply.stored
            if self._clock.boottime_s() > until_s:
                raise StoreUnavailable(
                    f"the owner at {self._address} is alive and could not store the events in "
                    "time; they may be stored yet"
                )

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connected(self, address: str) -> socket.socket:
        if self._line is not None and self._address == address:
            return self._line
        self.close()
        path = address.removeprefix(SCHEME)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Limits in the kernel: they also hold for a connection that is not accepted.
        seconds = int(self.answer_limit_s)
        limit = _TIMEVAL.pack(seconds, int((self.answer_limit_s - seconds) * 1_000_000))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            line.connect(path)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            line.close()
            with suppress(OSError):
                Path(path).unlink()  # left behind by the dead
            raise NobodyThere(f"nobody listens at {address}") from error
        except PermissionError as error:
            line.close()
            raise StoreUnusable(
                f"the owner of the partition, at {address}, runs as another user: producers of one "
                "partition must run as the same user"
            ) from error
        except OSError:
            line.close()
            raise
        self._address, self._line = address, line
        return line
