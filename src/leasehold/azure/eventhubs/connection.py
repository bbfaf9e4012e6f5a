"""One AMQP connection to a hub: the handshake, its sessions, and the way of each frame to its link.

Guarantees: frames of events that look like those before them go to their link in runs, without
being taken apart here. Whatever is damaged ends the connection, and all links hear of it. It holds
at most one frame that is not whole, none bigger than was agreed on.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.frames import AMQP_HEADER, EMPTY, HEAD_BYTES, SASL, SASL_HEADER, frame
from leasehold.azure.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    parse,
)
from leasehold.azure.eventhubs.event_link import EventLink
from leasehold.azure.eventhubs.service_errors import LOST, ServiceError, ServiceRefused, refusal_of
from leasehold.azure.eventhubs.session import HubSession, answer

if TYPE_CHECKING:
    import ssl

    from leasehold.azure.amqp.composites import Composite
    from leasehold.azure.eventhubs.address import HubAddress
    from leasehold.clock import Clock

MAX_FRAME_BYTES = 1 << 20
IDLE_MS = 60_000  # after which the server should let itself be heard
_ANONYMOUS = "ANONYMOUS"
_MAGIC = b"AMQP"
_AMQP_KIND = b"\x02\x00"
_TRANSFER = b"\x00\x53\x14"
_SHORT_LIST = 0xC0
_MIN_TRANSFER_BYTES = 25  # up to the end of the handle, however it is written
_U32 = struct.Struct(">I").unpack_from
_WORDS = "the connection was lost"


class HubConnection(asyncio.Protocol):
    """Made by ``open``. In one event loop."""

    def __init__(self, address: HubAddress, *, clock: Clock, container: str) -> None:
        """Not connected."""
        self.peer: Open | None = None
        self.heard_s = self.said_s = clock.boottime_s()
        self.over: asyncio.Future[ServiceError] = answer()
        self.gone: asyncio.Future[None] = answer()
        self._address = address
        self._clock = clock
        self._container = container
        self._opened: asyncio.Future[Open] = answer()
        self._transport: asyncio.Transport | None = None
        self._sessions: dict[int, HubSession] = {}
        self._by_theirs: dict[int, HubSession] = {}
        self._links: dict[tuple[bytes, int], EventLink] = {}
        self._parts: list[bytes] = []
        self._has = 0
        self._needs = HEAD_BYTES
        self._hot: EventLink | None = None
        self._touched: set[EventLink] = set()

    @classmethod
    async def open(
        cls, address: HubAddress, *, clock: Clock, container: str, context: ssl.SSLContext | None
    ) -> HubConnection:
        """Connect, and return when the server has opened the connection too.

        Raises:
            OSError: there is nobody, or the name or the certificate is wrong.
            Refused: the server does not want us, or is none of AMQP.
        """
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: cls(address, clock=clock, container=container),
            address.host,
            address.port,
            ssl=context,
        )
        try:
            await made._opened  # noqa: SLF001
        except BaseException:
            made.abort(ServiceError(condition=LOST, description="given up while it was opened"))
            raise
        return made

    # ------------------------------------------------------------- saying

    def send(self, channel: int, performative: Composite, payload: bytes = b"") -> None:
        """Write a frame; nothing if the connection is over."""
        self._write(frame(channel, performative.encode() + payload))

    def beat(self) -> None:
        """Say that we are still here."""
        self._write(EMPTY)

    async def session(self) -> HubSession:
        """A session with room for another link.

        Raises:
            Refused: the connection is over.
        """
        if self.over.done():
            raise ServiceRefused(self.over.result())
        for found in self._sessions.values():
            if found.has_room:
                await asyncio.shield(found.began)
                return found
        made = HubSession(self, len(self._sessions))
        self._sessions[made.channel] = made
        await asyncio.shield(made.began)
        return made

    def close(self) -> None:
        """End it in good order; what waits to be written is still written."""
        if self._transport is not None and not self.over.done():
            self.send(0, Close())
            self._end(ServiceError(condition=LOST, description="closed by us"))
            self._transport.close()

    def abort(self, refusal: ServiceError) -> None:
        """End it at once."""
        self._end(refusal)
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.said_s = self._clock.boottime_s()
            self._transport.write(data)

    # ----------------------------------------------------------- protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the sign-in; what it is worth is settled later, by tokens."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        self._write(SASL_HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything is over."""
        if not self.gone.done():
            self.gone.set_result(None)
        self._end(ServiceError(condition=LOST, description=f"{_WORDS}: {exc}" if exc else _WORDS))

    def data_received(self, data: bytes) -> None:
        """Cut the frames, and hand them on."""
        self.heard_s = self._clock.boottime_s()
        if self._parts:
            self._parts.append(data)
            self._has += len(data)
            if self._has < self._needs:
                return
            data = b"".join(self._parts)
        try:
            at = self._frames(data)
        except AmqpFault as fault:
            self.abort(ServiceError(condition=fault.condition, description=fault.description))
            return
        self._parts = [data[at:]] if at < len(data) else []
        self._has = len(data) - at

    def _frames(self, data: bytes) -> int:
        """Take all whole frames; gives where the rest begins."""
        at, end = 0, len(data)
        self._needs = HEAD_BYTES
        while end - at >= HEAD_BYTES:
            after = self._run(data, at, end)
            if after != at:
                at = after
                continue
            if data[at : at + 4] == _MAGIC:
                self._greeted(data[at : at + HEAD_BYTES])
                at += HEAD_BYTES
                continue
            size, head = _U32(data, at)[0], 4 * data[at + 4]
            if not HEAD_BYTES <= head <= size <= MAX_FRAME_BYTES:
                raise AmqpFault(f"a frame of {size} bytes is damaged or too big")
            if end - at < size:
                self._needs = size
                break
            if head < size:
                channel = int.from_bytes(data[at + 6 : at + 8], "big")
                self._take(data[at : at + size], head, channel)
            at += size
        for link in self._touched:
            link.settle()
        self._touched.clear()
        return at

    def _run(self, data: bytes, at: int, end: int) -> int:
        """Let a link take all frames that look like its last ones; gives where they end."""
        if self._hot is not None:
            after = self._hot.run(data, at, end)
            if after != at:
                self._touched.add(self._hot)
                return after
        if (
            end - at < _MIN_TRANSFER_BYTES
            or data[at + 4 : at + 6] != _AMQP_KIND
            or data[at + 8 : at + 11] != _TRANSFER
        ):
            return at
        place = at + (14 if data[at + 11] == _SHORT_LIST else 20)
        code = data[place]
        handle = 0 if code == 0x43 else data[place + 1]  # noqa: PLR2004 - the number 0
        if code == 0x70:  # noqa: PLR2004 - a number of four bytes
            handle = _U32(data, place + 1)[0]
        link = self._links.get((data[at + 6 : at + 8], handle))
        if link is None or link is self._hot:
            return at
        self._hot = link
        self._touched.add(link)
        return link.run(data, at, end)

    # ---------------------------------------------------------- handshake

    def _greeted(self, header: bytes) -> None:
        if header not in {SASL_HEADER, AMQP_HEADER}:
            raise AmqpFault("the server speaks another version of AMQP")

    def _take(self, whole: bytes, body_at: int, channel: int) -> None:
        performative, at = parse(memoryview(whole)[body_at:])
        if whole[5] == SASL:
            self._signed_in(performative)
        elif isinstance(performative, Transfer):
            self._transferred(performative, whole, body_at + at, channel)
        elif isinstance(performative, Open):
            self.peer = performative
            if not self._opened.done():
                self._opened.set_result(performative)
        elif isinstance(performative, Close):
            self.abort(refusal_of(performative.error, instead="closed by the server"))
        else:
            self._in_session(performative, channel)

    def _signed_in(self, performative: Composite) -> None:
        if isinstance(performative, SaslMechanisms):
            if _ANONYMOUS not in performative.mechanisms:
                raise AmqpFault(f"the server does not offer {_ANONYMOUS}, as event hubs do")
            init = SaslInit(mechanism=_ANONYMOUS, hostname=self._address.host)
            self._write(frame(0, init.encode(), SASL))
        elif isinstance(performative, SaslOutcome):
            if performative.code:
                raise AmqpFault(f"signing in has failed with code {performative.code}")
            self._write(AMQP_HEADER)
            self.send(
                0,
                Open(
                    container_id=self._container,
                    hostname=self._address.host,
                    max_frame_size=MAX_FRAME_BYTES,
                    channel_max=255,
                    idle_time_out=IDLE_MS,
                    properties={"product": "leasehold"},
                ),
            )

    # ----------------------------------------------------- what goes where

    def _in_session(self, performative: Composite, channel: int) -> None:
        if isinstance(performative, Begin):
            session = self._sessions.get(performative.remote_channel or 0)
            if session is not None:
                self._by_theirs[channel] = session
                session.on_begin(performative)
            return
        session = self._by_theirs.get(channel)
        if session is None:
            raise AmqpFault(f"a frame came on channel {channel}, where no session is")
        if isinstance(performative, Attach):
            session.on_attach(performative)
            self._place(session, performative, channel)
        elif isinstance(performative, Flow):
            session.on_flow(performative)
        elif isinstance(performative, Detach):
            self._forget(channel, performative.handle)
            session.on_detach(performative)
        elif isinstance(performative, End):
            self.abort(refusal_of(performative.error, instead="the session was ended"))

    def _transferred(self, transfer: Transfer, whole: bytes, at: int, channel: int) -> None:
        session = self._by_theirs.get(channel)
        if session is None:
            raise AmqpFault(f"a message came on channel {channel}, where no session is")
        session.next_incoming += 1
        link = session.link(transfer.handle)
        if link is None:
            return  # it was detached, and this was on its way
        link.on_transfer(transfer, whole[at:])
        if isinstance(link, EventLink):
            link.learn(whole, transfer)
            self._hot = link
            self._touched.add(link)

    def _place(self, session: HubSession, attach: Attach, channel: int) -> None:
        link = session.link(attach.handle)
        if isinstance(link, EventLink):
            self._links[channel.to_bytes(2, "big"), attach.handle] = link
            link.placed(channel, attach.handle)

    def _forget(self, channel: int, handle: int) -> None:
        link = self._links.pop((channel.to_bytes(2, "big"), handle), None)
        if link is self._hot:
            self._hot = None

    def _end(self, refusal: ServiceError) -> None:
        if self.over.done():
            return
        self.over.set_result(refusal)
        if not self._opened.done():
            self._opened.set_exception(ServiceRefused(refusal))
        self._links.clear()
        self._hot = None
        for session in self._sessions.values():
            session.on_end(refusal)
