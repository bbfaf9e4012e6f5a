"""The connection of the Azure Blob store: every way to write an answer, and what is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from leasehold.azure.blob_store.http import HttpConnection

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(answer: bytes) -> Iterator[HttpConnection]:
    """A connection to somebody who says this, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # who has heard enough hangs up
                peer.recv(1 << 16)
                for start in range(0, len(answer), 7):  # never whole lines at once
                    peer.sendall(answer[start : start + 7])

        thread = threading.Thread(target=serve)
        thread.start()
        made = HttpConnection("127.0.0.1", server.getsockname()[1], tls=None, timeout_s=90.0)
        try:
            yield made
        finally:
            made.close()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "status", "body", "keep"),
    [
        (OK + b"Content-Length: 5\r\nETag: x\r\n\r\nhello", 200, b"hello", True),
        (OK + b"content-length:0\r\nConnection: close\r\n\r\n", 200, b"", False),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            200,
            b"abcde",
            True,
        ),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n", 200, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", 200, b"x", True),
    ],
)
def test_an_answer_is_read(answer: bytes, status: int, body: bytes, keep: bool) -> None:
    with answering(answer) as connection:
        found = connection.exchange(b"GET / HTTP/1.1\r\n\r\n")
        assert (found[0], found[2], found[3]) == (status, body, keep)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        OK,
        OK + b"\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: many\r\n\r\n",
        OK + b"Content-Length: 99999999999\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\nshort",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"x" * 70_000,
    ],
    ids=lambda answer: repr(answer[:40]),
)
def test_what_is_no_answer_is_an_error_of_the_line(answer: bytes) -> None:
    with answering(answer) as connection, pytest.raises(OSError):  # noqa: PT011
        connection.exchange(b"GET / HTTP/1.1\r\n\r\n")
