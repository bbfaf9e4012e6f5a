"""One AMQP connection to a hub: its handshake, its sessions, and the dispatch of frames to links.

Guarantees: event frames that look like those before them go to their link in runs, without being
parsed here. A damaged frame ends the connection, and all its links. The connection buffers at most
one incomplete frame, of at most the negotiated size.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    HEAD_BYTES,
    SASL,
    SASL_HEADER,
    frame,
)
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
from leasehold.azure.eventhubs.service_errors import (
    LOST,
    ServiceError,
    ServiceRefused,
    service_error_of,
)
from leasehold.azure.eventhubs.session import HubSession, new_future

if TYPE_CHECKING:
    import ssl

    from leasehold.azure.amqp.composites import Composite
    from leasehold.azure.eventhubs.address import HubAddress
    from leasehold.clock import Clock

MAX_FRAME_BYTES = 1 << 20
IDLE_MS = 60_000  # the server has to send something within this time
_ANONYMOUS = "ANONYMOUS"
_MAGIC = b"AMQP"
_DOFF_AND_AMQP = b"\x02\x00"
_TRANSFER = b"\x00\x53\x14"
_SHORT_LIST = 0xC0
_MIN_TRANSFER_BYTES = 25  # up to the end of the handle, however it is written
_U32 = struct.Struct(">I").unpack_from
_LOST_MESSAGE = "the connection was lost"


class HubConnection(asyncio.Protocol):
    """A connection, made by ``open``. For one event loop.

    ``ended`` is done when it can no longer be used, ``transport_closed`` when the socket is closed.
    """

    def __init__(self, address: HubAddress, *, clock: Clock, container: str) -> None:
        self.remote_open: Open | None = None
        self.last_received_s = self.last_sent_s = clock.boottime_s()
        self.ended: asyncio.Future[ServiceError] = new_future()
        self.transport_closed: asyncio.Future[None] = new_future()
        self._address = address
        self._clock = clock
        self._container = container
        self._opened: asyncio.Future[Open] = new_future()
        self._transport: asyncio.Transport | None = None
        self._sessions: dict[int, HubSession] = {}
        self._by_remote_channel: dict[int, HubSession] = {}
        self._links: dict[tuple[bytes, int], EventLink] = {}
        self._parts: list[bytes] = []
        self._buffered_bytes = 0
        self._needed_bytes = HEAD_BYTES
        self._last_link: EventLink | None = None
        self._links_read: set[EventLink] = set()

    @classmethod
    async def open(
        cls, address: HubAddress, *, clock: Clock, container: str, context: ssl.SSLContext | None
    ) -> HubConnection:
        """Connect, and return when the server has opened the connection too."""
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: cls(address, clock=clock, container=container),
            address.host,
            address.port,
            ssl=context,
        )
        try:
            await connection._opened  # noqa: SLF001
        except BaseException:
            connection.abort(
                ServiceError(condition=LOST, description="given up while it was opened")
            )
            raise
        return connection

    # ------------------------------------------------------------ sending

    def send(self, channel: int, performative: Composite, payload: bytes = b"") -> None:
        """Write a frame; do nothing if the connection has ended."""
        self._write(frame(channel, performative.encode() + payload))

    def send_heartbeat(self) -> None:
        """Send an empty frame."""
        self._write(EMPTY_FRAME)

    async def session(self) -> HubSession:
        """Return a session with room for another link."""
        if self.ended.done():
            raise ServiceRefused(self.ended.result())
        for found in self._sessions.values():
            if found.has_room:
                await asyncio.shield(found.began)
                return found
        session = HubSession(self, len(self._sessions))
        self._sessions[session.channel] = session
        await asyncio.shield(session.began)
        return session

    def close(self) -> None:
        """Close gracefully; pending bytes are still written."""
        if self._transport is not None and not self.ended.done():
            self.send(0, Close())
            self._end(ServiceError(condition=LOST, description="closed by us"))
            self._transport.close()

    def abort(self, service_error: ServiceError) -> None:
        """Close immediately; all links end with this error."""
        self._end(service_error)
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.last_sent_s = self._clock.boottime_s()
            self._transport.write(data)

    # ----------------------------------------------------------- protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with an anonymous sign-in; tokens follow later."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        self._write(SASL_HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all sessions and links."""
        if not self.transport_closed.done():
            self.transport_closed.set_result(None)
        text = f"{_LOST_MESSAGE}: {exc}" if exc else _LOST_MESSAGE
        self._end(ServiceError(condition=LOST, description=text))

    def data_received(self, data: bytes) -> None:
        """Take bytes, and dispatch the complete frames."""
        self.last_received_s = self._clock.boottime_s()
        if self._parts:
            self._parts.append(data)
            self._buffered_bytes += len(data)
            if self._buffered_bytes < self._needed_bytes:
                return
            data = b"".join(self._parts)
        try:
            at = self._take_frames(data)
        except AmqpFault as fault:
            self.abort(ServiceError(condition=fault.condition, description=fault.description))
            return
        self._parts = [data[at:]] if at < len(data) else []
        self._buffered_bytes = len(data) - at

    def _take_frames(self, data: bytes) -> int:
        """Take all complete frames; return where the rest begins."""
        at, end = 0, len(data)
        self._needed_bytes = HEAD_BYTES
        while end - at >= HEAD_BYTES:
            after = self._take_event_frames(data, at, end)
            if after != at:
                at = after
                continue
            if data[at : at + 4] == _MAGIC:
                self._check_header(data[at : at + HEAD_BYTES])
                at += HEAD_BYTES
                continue
            size, head = _U32(data, at)[0], 4 * data[at + 4]
            if not HEAD_BYTES <= head <= size <= MAX_FRAME_BYTES:
                raise AmqpFault(f"a frame of {size} bytes is damaged or too big")
            if end - at < size:
                self._needed_bytes = size
                break
            if head < size:
                channel = int.from_bytes(data[at + 6 : at + 8], "big")
                self._on_frame(data[at : at + size], head, channel)
            at += size
        for link in self._links_read:
            link.after_read()
        self._links_read.clear()
        return at

    def _take_event_frames(self, data: bytes, at: int, end: int) -> int:
        """Let a link take all frames that look like its last ones; return where they end."""
        if self._last_link is not None:
            after = self._last_link.take_frames(data, at, end)
            if after != at:
                self._links_read.add(self._last_link)
                return after
        if (
            end - at < _MIN_TRANSFER_BYTES
            or data[at + 4 : at + 6] != _DOFF_AND_AMQP
            or data[at + 8 : at + 11] != _TRANSFER
        ):
            return at
        handle_at = at + (14 if data[at + 11] == _SHORT_LIST else 20)
        code = data[handle_at]
        handle = 0 if code == 0x43 else data[handle_at + 1]  # noqa: PLR2004 - the number 0
        if code == 0x70:  # noqa: PLR2004 - a number of four bytes
            handle = _U32(data, handle_at + 1)[0]
        link = self._links.get((data[at + 6 : at + 8], handle))
        if link is None or link is self._last_link:
            return at
        self._last_link = link
        self._links_read.add(link)
        return link.take_frames(data, at, end)

    # ---------------------------------------------------------- handshake

    def _check_header(self, header: bytes) -> None:
        if header not in {SASL_HEADER, AMQP_HEADER}:
            raise AmqpFault("the server speaks another version of AMQP")

    def _on_frame(self, whole: bytes, body_at: int, channel: int) -> None:
        performative, at = parse(memoryview(whole)[body_at:])
        if whole[5] == SASL:
            self._on_sasl(performative)
        elif isinstance(performative, Transfer):
            self._on_transfer(performative, whole, body_at + at, channel)
        elif isinstance(performative, Open):
            self.remote_open = performative
            if not self._opened.done():
                self._opened.set_result(performative)
        elif isinstance(performative, Close):
            self.abort(service_error_of(performative.error, instead="closed by the server"))
        else:
            self._on_session_frame(performative, channel)

    def _on_sasl(self, performative: Composite) -> None:
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

    # ----------------------------------------------------------- dispatch

    def _on_session_frame(self, performative: Composite, channel: int) -> None:
        if isinstance(performative, Begin):
            session = self._sessions.get(performative.remote_channel or 0)
            if session is not None:
                self._by_remote_channel[channel] = session
                session.on_begin(performative)
            return
        session = self._by_remote_channel.get(channel)
        if session is None:
            raise AmqpFault(f"a frame came on channel {channel}, where no session is")
        if isinstance(performative, Attach):
            session.on_attach(performative)
            self._register_link(session, performative, channel)
        elif isinstance(performative, Flow):
            session.on_flow(performative)
        elif isinstance(performative, Detach):
            self._forget_link(channel, performative.handle)
            session.on_detach(performative)
        elif isinstance(performative, End):
            self.abort(service_error_of(performative.error, instead="the session was ended"))

    def _on_transfer(self, transfer: Transfer, whole: bytes, at: int, channel: int) -> None:
        session = self._by_remote_channel.get(channel)
        if session is None:
            raise AmqpFault(f"a message came on channel {channel}, where no session is")
        session.next_incoming += 1
        link = session.link(transfer.handle)
        if link is None:
            return  # sent before the server knew that the link was detached
        link.on_transfer(transfer, whole[at:])
        if isinstance(link, EventLink):
            link.learn_layout(whole, transfer)
            self._last_link = link
            self._links_read.add(link)

    def _register_link(self, session: HubSession, attach: Attach, channel: int) -> None:
        link = session.link(attach.handle)
        if isinstance(link, EventLink):
            self._links[channel.to_bytes(2, "big"), attach.handle] = link
            link.on_remote_handle(channel, attach.handle)

    def _forget_link(self, channel: int, handle: int) -> None:
        link = self._links.pop((channel.to_bytes(2, "big"), handle), None)
        if link is self._last_link:
            self._last_link = None

    def _end(self, service_error: ServiceError) -> None:
        if self.ended.done():
            return
        self.ended.set_result(service_error)
        if not self._opened.done():
            self._opened.set_exception(ServiceRefused(service_error))
        self._links.clear()
        self._last_link = None
        for session in self._sessions.values():
            session.on_end(service_error)
