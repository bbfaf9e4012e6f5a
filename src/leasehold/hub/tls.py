"""TLS of one connection, without a socket: bytes in, bytes out.

That of asyncio keeps a buffer of 256 KiB for each connection, also for one that says nothing. Here
nothing is made before the first byte, and no buffer holds more than a few records.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

_PIECE_BYTES = 16 << 10  # a record holds as many; what the buffers once held they keep


class Encryption:
    """The server's side. An ``ssl.SSLError`` of any method is the end of the connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        """Nothing has come yet."""
        self.is_over = False  # whether the other side has said good-bye
        self._context = context
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._is_ready = False

    def opened(self, data: bytes) -> bytes:
        """What these bytes of the other side say: nothing, while keys are agreed upon.

        Raises:
            ssl.SSLError: they are not TLS, or damaged. ``answer`` may have a word about it.
        """
        tls = self._tls
        if tls is None:
            tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls = tls
        found: list[bytes] = []
        for at in range(0, len(data), _PIECE_BYTES):
            self._incoming.write(memoryview(data)[at : at + _PIECE_BYTES])
            with suppress(ssl.SSLWantReadError):  # it has taken all there is
                if not self._is_ready:
                    tls.do_handshake()
                    self._is_ready = True
                while part := tls.read(_PIECE_BYTES):
                    found.append(part)
                self.is_over = True
                break
        return b"".join(found)

    def answer(self) -> bytes:
        """What has to be sent without anybody having asked for it."""
        return self._outgoing.read()

    def sealed(self, data: bytes) -> bytes:
        """These bytes as they are sent.

        Raises:
            ssl.SSLError: keys are being agreed upon, or all is over.
        """
        tls = self._tls
        if tls is None:
            raise ssl.SSLError("nothing was agreed upon")
        rest = memoryview(data)
        found: list[bytes] = []
        while rest:
            rest = rest[tls.write(rest) :]
            found.append(self._outgoing.read())
        return b"".join(found)

    def farewell(self) -> bytes:
        """The last bytes: that nothing more will come, if there is anybody who understands it."""
        if self._tls is not None and self._is_ready:
            with suppress(ssl.SSLError):  # it does not wait for the other side to say so too
                self._tls.unwrap()
        return self.answer()
