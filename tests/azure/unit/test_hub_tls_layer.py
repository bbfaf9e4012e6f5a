"""TLS of a hub, without a socket."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.support.hub import tls_of

from leasehold.azure.endpoint.connection import TlsLayer

MIB = 1 << 20


class Pair:
    """A hub's side, and a client's beside it."""

    def __init__(self, directory: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context, cert = tls_of(directory)
        trusting = ssl.create_default_context(cafile=str(cert))
        trusting.maximum_version = version
        self.hub = TlsLayer(context)
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = trusting.wrap_bio(self._incoming, self.outgoing, server_hostname="127.0.0.1")

    def agree(self, *, piece: int = MIB) -> None:
        """Agree upon keys, in pieces of this many bytes."""
        for _ in range(10):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                assert self.to_hub(piece) == b""
            else:
                self.to_hub(piece)
                return
        pytest.fail("they do not agree")

    def to_hub(self, piece: int = MIB) -> bytes:
        """Bring what the client has to say, and the answer back; return what the hub has read."""
        data, found = self.outgoing.read(), b""
        for at in range(0, len(data), piece):
            found += self.hub.decrypt(data[at : at + piece])
            self._incoming.write(self.hub.pending_output())
        return found

    def to_client(self, data: bytes) -> bytes:
        """What the client reads."""
        self._incoming.write(data)
        found = b""
        while True:
            try:
                part = self.client.read(MIB)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                return found
            if not part:
                return found
            found += part


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    made = Pair(tmp_path, request.param)
    made.agree()
    return made


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_bytes_may_come_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    pair = Pair(tmp_path)
    pair.agree(piece=piece)
    said = bytes(range(256)) * 200
    pair.client.write(said[:20_000])
    pair.client.write(said[20_000:])
    got = pair.to_hub(piece)
    while len(got) < len(said):  # a write takes as much as one record holds
        pair.client.write(said[len(got) :])
        got += pair.to_hub(piece)
    assert got == said


def test_much_goes_both_ways_and_the_buffers_stay_small(pair: Pair) -> None:
    said = bytes(range(256)) * (1 << 13)
    assert pair.to_client(pair.hub.encrypt(said)) == said
    rest, encrypted = memoryview(said), b""
    while rest:
        rest = rest[pair.client.write(rest) :]
        encrypted += pair.outgoing.read()
    assert pair.hub.decrypt(encrypted) == said
    assert not pair.hub.pending_output()
    assert not pair.hub.is_closed
    assert pair.to_client(pair.hub.encrypt(b"")) == b""


def test_a_farewell_is_understood_either_way(pair: Pair) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    assert not pair.hub.is_closed
    assert pair.to_hub() == b""
    assert pair.hub.is_closed
    pair.to_client(pair.hub.close_notify())
    pair.client.unwrap()  # it has heard the other side


def test_the_last_words_before_a_farewell_are_read(pair: Pair) -> None:
    pair.client.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    assert pair.to_hub() == b"last words"
    assert pair.hub.is_closed


def test_what_is_no_tls_is_refused(tmp_path: Path) -> None:
    hub = Pair(tmp_path).hub
    with pytest.raises(ssl.SSLError):
        hub.decrypt(b"AMQP\x03\x01\x00\x00")
    hub.close_notify()  # and can be parted from


def test_damaged_bytes_are_refused_and_answered(pair: Pair) -> None:
    pair.client.write(b"something")
    damaged = bytearray(pair.outgoing.read())
    damaged[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        pair.hub.decrypt(bytes(damaged))
    assert pair.hub.close_notify()


def test_nothing_can_be_said_before_keys_are_agreed_upon(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pytest.raises(ssl.SSLError):
        pair.hub.encrypt(b"x")
    assert pair.hub.close_notify() == b""
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.do_handshake()
    pair.hub.decrypt(pair.outgoing.read()[:50])
    with pytest.raises(ssl.SSLError):
        pair.hub.encrypt(b"x")
    assert pair.hub.close_notify() == b""
