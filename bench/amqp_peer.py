"""A server for the unmodified client of azure-eventhub, in a process of its own.

As much of Event Hubs as it takes to receive: one hub, any partition of which has as many events as
the client gives credit for; or, with ``--every-ms``, one event at a time in partition 0, with the
moment of its sending in front of its body. It says its port on a line, and ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench import amqp_codec as amqp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HUB = "hub"
_SASL = b"AMQP\x03\x01\x00\x00"
_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _DISPOSITION, _DETACH, _END, _CLOSE = range(0x10, 0x19)
_SASL_INIT, _SASL_OUTCOME, _SASL_MECHANISMS = 0x41, 0x44, 0x40
_SOURCE, _TARGET, _ACCEPTED = 0x28, 0x29, 0x24
_NODES = ("$cbs", "$management")
_WIDE = 0x7FFF_FFFF
_SEQUENCE, _OFFSET, _ENQUEUED = map(
    amqp.symbol, ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time")
)


@contextmanager
def peer_server(*, partitions: int, body_bytes: int, every_ms: float = 0.0) -> Iterator[str]:
    """A server of its own; gives the connection string for the client."""
    command = [sys.executable, "-m", "bench.amqp_peer", f"--partitions={partitions}"]
    command += [f"--body-bytes={body_bytes}", f"--every-ms={every_ms}"]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield (
                f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=K;SharedAccessKey=V;"
                f"EntityPath={HUB};UseDevelopmentEmulator=true;"
            )
        finally:
            process.stdin.close()  # it ends with its input


@dataclass(slots=True)
class _Link:
    """One that the client has attached; ``sends``: its events or answers go to the client."""

    channel: int
    handle: int
    address: str
    sends: bool
    delivered: int = 0
    until: int = 0
    waiting: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Hub:
    partitions: int
    body: bytes
    is_paced: bool
    followers: dict[int, tuple[_Connection, _Link]] = field(default_factory=dict)

    async def emit(self, every_s: float) -> None:
        """One event after the other to whoever reads partition 0, at its pace."""
        due_s = time.monotonic()
        while True:
            due_s += every_s
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            for connection, link in list(self.followers.values()):
                connection.deliver_now(link)

    def about(self, asked: dict[str, Any]) -> bytes:
        """The answer of the management node, which is asked for the partitions only."""
        ids = [amqp.string(str(number)) for number in range(self.partitions)]
        return amqp.pairs(
            {
                amqp.string("name"): amqp.string(HUB),
                amqp.string("type"): amqp.string(str(asked.get("type"))),
                amqp.string("created_at"): amqp.timestamp(0),
                amqp.string("partition_count"): amqp.integer(self.partitions),
                amqp.string("partition_ids"): amqp.array(b"\xb1", ids),
                amqp.string("georeplication_factor"): amqp.integer(1),
            }
        )


class _Connection(asyncio.Protocol):
    def __init__(self, hub: _Hub) -> None:
        self._hub = hub
        self._data = bytearray()
        self._links: dict[tuple[int, int], _Link] = {}
        self._next_ids: dict[int, int] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._hub.followers.pop(id(self), None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 8:
            if self._data.startswith(b"AMQP"):
                self._greet(bytes(self._data[:8]))
                del self._data[:8]
                continue
            size = int.from_bytes(self._data[:4], "big")
            if len(self._data) < size:
                return
            channel = int.from_bytes(self._data[6:8], "big")
            body = bytes(self._data[self._data[4] * 4 : size])
            del self._data[:size]
            if body:
                self._take(channel, body)

    def _greet(self, header: bytes) -> None:
        self._write(header)
        if header == _SASL:
            offered = amqp.array(b"\xb3", [amqp.symbol("ANONYMOUS")])
            self._send(0, _SASL_MECHANISMS, offered, kind=1)

    def _take(self, channel: int, body: bytes) -> None:
        decoder = amqp.Decoder(body)
        code, fields = decoder.value()
        if code == _SASL_INIT:
            self._send(0, _SASL_OUTCOME, amqp.ubyte(0), amqp.NULL, kind=1)
        elif code == _OPEN:
            times = (amqp.uint(1 << 20), amqp.ushort(4999), amqp.uint(120_000))
            names = (amqp.string("bench"), amqp.string("bench"))
            self._send(channel, _OPEN, *names, *times, *[amqp.NULL] * 5)
        elif code == _BEGIN:
            self._next_ids[channel] = 1
            windows = (amqp.uint(1), amqp.uint(_WIDE), amqp.uint(_WIDE), amqp.uint(255))
            self._send(channel, _BEGIN, amqp.ushort(channel), *windows, *[amqp.NULL] * 3)
        elif code == _ATTACH:
            self._attach(channel, fields)
        elif code == _FLOW and fields[4] is not None:
            self._flow(self._links[channel, fields[4]], fields)
        elif code == _TRANSFER:
            self._answer(self._links[channel, fields[0]], fields[1], decoder.left)
        elif code == _DETACH:
            self._links.pop((channel, fields[0]), None)
            self._hub.followers.pop(id(self), None)
            self._send(channel, _DETACH, amqp.uint(fields[0]), amqp.boolean(True), amqp.NULL)
        elif code in {_END, _CLOSE}:
            self._send(channel, code, amqp.NULL)

    def _attach(self, channel: int, fields: list[Any]) -> None:
        name, handle, is_receiver, (_, source), (_, target) = (*fields[:3], fields[5], fields[6])
        link = _Link(
            channel=channel,
            handle=handle,
            address=source[0] if is_receiver else target[0],
            sends=is_receiver,
        )
        self._links[channel, handle] = link
        self._send(
            channel,
            _ATTACH,
            amqp.string(name),
            amqp.uint(handle),
            amqp.boolean(not is_receiver),
            amqp.ubyte(1),
            amqp.ubyte(0),
            amqp.described(_SOURCE, amqp.row(amqp.string(source[0]), *[amqp.NULL] * 10)),
            amqp.described(_TARGET, amqp.row(amqp.string(target[0]), *[amqp.NULL] * 6)),
            amqp.NULL,
            amqp.boolean(False),
            amqp.uint(0),
            b"\x80" + struct.pack(">Q", 1 << 20),
            *[amqp.NULL] * 3,
        )
        if not is_receiver:
            credit = (amqp.uint(handle), amqp.uint(0), amqp.uint(1000), amqp.NULL)
            windows = (amqp.uint(0), amqp.uint(_WIDE), amqp.uint(1), amqp.uint(_WIDE))
            flags = (amqp.boolean(False), amqp.boolean(False), amqp.NULL)
            self._send(channel, _FLOW, *windows, *credit, *flags)

    def _flow(self, link: _Link, fields: list[Any]) -> None:
        if not link.sends or link.address in _NODES:
            return
        link.until = (fields[5] or 0) + (fields[6] or 0)
        if not self._hub.is_paced:
            credit = link.until - link.delivered
            self._write(b"".join(self._event(link, self._hub.body) for _ in range(credit)))
        elif link.address.endswith("/0"):
            self._hub.followers[id(self)] = (self, link)
            self._send_waiting(link)

    def deliver_now(self, link: _Link) -> None:
        """One event, which waits if there is no credit for it, with the time that it has now."""
        link.waiting.append(struct.pack(">q", time.monotonic_ns()) + self._hub.body[8:])
        self._send_waiting(link)

    def _send_waiting(self, link: _Link) -> None:
        while link.waiting and link.delivered < link.until:
            self._write(self._event(link, link.waiting.pop(0)))

    def _event(self, link: _Link, body: bytes) -> bytes:
        notes = {
            _SEQUENCE: amqp.long(link.delivered),
            _OFFSET: amqp.string(str(link.delivered * 256)),
            _ENQUEUED: amqp.timestamp(int(time.time() * 1000)),
        }
        message = amqp.described(0x72, amqp.pairs(notes)) + amqp.described(0x75, amqp.binary(body))
        return self._transfer(link, message)

    def _answer(self, link: _Link, delivery: int, message: bytes) -> None:
        """Accept the request, and answer on the other link to the same node."""
        sections = dict(_sections(message))
        asked = sections.get(0x74, {})
        accepted = (amqp.described(_ACCEPTED, amqp.row()), amqp.boolean(False))
        ids = (amqp.uint(delivery), amqp.uint(delivery), amqp.boolean(True))
        self._send(link.channel, _DISPOSITION, amqp.boolean(True), *ids, *accepted)
        (back,) = (
            other
            for other in self._links.values()
            if (other.channel, other.address, other.sends) == (link.channel, link.address, True)
        )
        is_token = link.address == "$cbs"
        status = {
            amqp.string("status-code"): amqp.integer(202 if is_token else 200),
            amqp.string("status-description"): amqp.string("OK"),
        }
        correlation = amqp.identifier(sections[0x73][0])
        answer = amqp.NULL if is_token else self._hub.about(asked)
        self._write(
            self._transfer(
                back,
                amqp.described(0x73, amqp.row(*[amqp.NULL] * 5, correlation, *[amqp.NULL] * 7))
                + amqp.described(0x74, amqp.pairs(status))
                + amqp.described(0x77, answer),
            )
        )

    def _transfer(self, link: _Link, message: bytes) -> bytes:
        number = self._next_ids[link.channel]
        self._next_ids[link.channel] = (number + 1) & _WIDE
        link.delivered += 1
        performative = amqp.row(
            amqp.uint(link.handle),
            amqp.uint(number),
            amqp.binary(struct.pack(">I", number)),
            amqp.uint(0),
            amqp.boolean(True),
            amqp.boolean(False),
            amqp.NULL,
            amqp.NULL,
            amqp.boolean(False),
            amqp.boolean(False),
            amqp.boolean(True),
        )
        return amqp.frame(link.channel, amqp.described(_TRANSFER, performative) + message)

    def _send(self, channel: int, code: int, *fields: bytes, kind: int = 0) -> None:
        self._write(amqp.frame(channel, amqp.described(code, amqp.row(*fields)), kind=kind))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _sections(message: bytes) -> Iterator[tuple[int, Any]]:
    decoder = amqp.Decoder(message)
    while decoder.left:
        yield decoder.value()


async def _serve(hub: _Hub, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(hub), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    emitter = loop.create_task(hub.emit(every_s)) if hub.is_paced else None
    await loop.run_in_executor(None, sys.stdin.read)
    if emitter is not None:
        emitter.cancel()
        with suppress(asyncio.CancelledError):
            await emitter
    server.close()


def _main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.amqp_peer", description=__doc__)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--body-bytes", type=int, default=200)
    parser.add_argument("--every-ms", type=float, default=0.0)
    options = parser.parse_args(argv)
    hub = _Hub(
        partitions=options.partitions,
        body=bytes(number % 251 for number in range(options.body_bytes)),
        is_paced=options.every_ms > 0,
    )
    asyncio.run(_serve(hub, options.every_ms / 1e3))


if __name__ == "__main__":
    _main()
