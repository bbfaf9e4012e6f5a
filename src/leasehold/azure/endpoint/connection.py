"""One client connection: its protocol state, and its TLS layer.

Guarantees: whatever bytes arrive, at most one frame and the deliveries not yet stored are in
memory, and malformed input closes the connection with a reason. A client without a token reaches
only the node that takes tokens, and only for ``handshake_timeout``. While a client does not read,
the server does not read from it either.

TLS runs on memory buffers, without a socket. asyncio's own keeps 256 KiB for each connection, also
for an idle one; here nothing is allocated before the first byte, and no buffer holds more than a
few records.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from leasehold.azure.amqp.composites import Error
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.frames import (
    AMQP,
    AMQP_HEADER,
    EMPTY_FRAME,
    HEADER,
    SASL,
    SASL_HEADER,
    FrameReader,
    frame,
)
from leasehold.azure.amqp.performatives import (
    Begin,
    Close,
    End,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    parse,
)
from leasehold.azure.endpoint.error_conditions import FORCED, TOO_MANY, UNAUTHORIZED, RequestRefused
from leasehold.azure.endpoint.session import EndpointSession

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from datetime import datetime

    from leasehold.azure.amqp.composites import Composite
    from leasehold.azure.amqp.frames import Frame
    from leasehold.azure.endpoint.hubs import Hubs
    from leasehold.azure.endpoint.options import HubOptions
    from leasehold.azure.endpoint.retries import Retries
    from leasehold.azure.endpoint.sas_keys import Grant
    from leasehold.azure.endpoint.selectors import ReaderEpochs
    from leasehold.azure.endpoint.server import HubServer
    from leasehold.clock import Clock

_CHUNK_BYTES = 16 << 10  # the size of a TLS record; the buffers never shrink again


class TlsLayer:
    """The server side of TLS, without a socket: bytes in, bytes out.

    An ``ssl.SSLError`` of any method ends the connection.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.is_closed = False  # whether the client has sent close_notify
        self._context = context
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._is_established = False

    def decrypt(self, data: bytes) -> bytes:
        """Return the plain bytes; none during the handshake."""
        tls = self._tls
        if tls is None:
            tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls = tls
        found: list[bytes] = []
        for at in range(0, len(data), _CHUNK_BYTES):
            self._incoming.write(memoryview(data)[at : at + _CHUNK_BYTES])
            with suppress(ssl.SSLWantReadError):  # the input is used up
                if not self._is_established:
                    tls.do_handshake()
                    self._is_established = True
                while part := tls.read(_CHUNK_BYTES):
                    found.append(part)
                self.is_closed = True
                break
        return b"".join(found)

    def pending_output(self) -> bytes:
        """Return what TLS itself has to send: the handshake, an alert."""
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Return the encrypted bytes; fails before the handshake is complete and after the end."""
        tls = self._tls
        if tls is None:
            raise ssl.SSLError("nothing was agreed upon")
        rest = memoryview(data)
        found: list[bytes] = []
        while rest:
            rest = rest[tls.write(rest) :]
            found.append(self._outgoing.read())
        return b"".join(found)

    def close_notify(self) -> bytes:
        """Return the last bytes to send, a close_notify if the handshake was complete."""
        if self._tls is not None and self._is_established:
            with suppress(ssl.SSLError):  # the client's own close_notify is not awaited
                self._tls.unwrap()
        return self.pending_output()


log = logging.getLogger("leasehold.azure.endpoint")

CONTAINER = "leasehold"
_ANONYMOUS, _PLAIN = "ANONYMOUS", "PLAIN"
_MAX_UNAUTHENTICATED_FRAMES = 200
_MAX_UNAUTHENTICATED_FRAME_BYTES = 64 << 10
_MAX_UNAUTHENTICATED_BYTES = 256 << 10
# Of a performative: parts of it may be kept as long as its link exists.
_MAX_UNAUTHENTICATED_CONTROL_BYTES = 4 << 10
_MAX_CONTROL_BYTES = 16 << 10
_MAX_CONTROL_VALUES = 1000
_MAX_LINKS = 4096
_MAX_TASKS = 2 * _MAX_LINKS
_MAX_REASON_CHARS = 500  # some reasons quote what the client has sent
_MIN_FRAME_BYTES = 512
_MAX_GRANTS = 256
_HIGH_WATER_BYTES = 1 << 20
_MIN_HEARTBEAT_S = 0.2
_CLOSE_TIMEOUT_S = 5.0


class ClientConnection(asyncio.Protocol):
    """The protocol of one client; the server makes one for each connection."""

    def __init__(self, server: HubServer) -> None:
        self._server = server
        self.options: HubOptions = server.options
        self.hubs: Hubs = server.hubs
        self.epochs: ReaderEpochs = server.epochs
        self.retries: Retries = server.retries
        self.clock: Clock = server.clock
        self.client_frame_bytes = _MIN_FRAME_BYTES
        self.writable = asyncio.Event()
        self.writable.set()
        self.client_host = ""
        self._transport: asyncio.Transport | None = None
        tls = self.options.tls
        self._tls = None if tls is None else TlsLayer(tls)
        self._reader = FrameReader(
            min(_MAX_UNAUTHENTICATED_FRAME_BYTES, self.options.max_frame_bytes)
        )
        self._sessions: dict[int, EndpointSession] = {}
        self._ended: set[int] = set()
        self._grants: dict[str, Grant] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._frames = self._unauthenticated_bytes = 0
        self._links = 0
        self._is_open = False
        self._is_closing = False
        self._unsettled_bytes = 0
        self._partial_bytes = self._buffered_bytes = 0
        now = server.clock.boottime_s()
        self._began_at = self._last_received_at = self._last_sent_at = now
        self._closed_at = now
        self._write_blocked_since: float | None = None
        self._is_reading = True

    # ------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server, which may have no room."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - the server makes no other
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        if not self._server.enter(self):
            transport.abort()
        else:
            transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all sessions and tasks."""
        del exc
        self._is_closing = True
        self._server.leave(self)
        self._count_buffered(0)
        self.writable.set()
        for task in tuple(self._tasks):
            task.cancel()
        for session in self._sessions.values():
            session.on_closed()
        self._sessions.clear()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self.writable.clear()
        self._write_blocked_since = self.clock.boottime_s()
        self.update_reading()

    def resume_writing(self) -> None:
        """Resume reading from the client."""
        self.writable.set()
        self._write_blocked_since = None
        self.update_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._last_received_at = self.clock.boottime_s()
        try:
            data = self._decrypt(data)
            if not self._grants:
                self._unauthenticated_bytes += len(data)
            for each in self._reader.feed(data):
                if self._is_closing:
                    return
                self._on_any_frame(each)
            self._count_buffered(self._reader.buffered_bytes)
            if self._tls is not None and self._tls.is_closed:
                self.close()
        except ssl.SSLError as error:
            log.info("a connection is closed: %s", error)
            self.close()
        except AmqpFault as fault:
            self.close(RequestRefused(fault.condition, fault.description))
        except Exception as error:
            log.exception("a connection ends")
            self.close(RequestRefused("amqp:internal-error", type(error).__name__))

    # ------------------------------------------- called by sessions, links and server

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        if not transport.is_closing():  # it may be broken before connection_lost is called
            self._last_sent_at = self.clock.boottime_s()
            try:
                transport.write(data if self._tls is None else self._tls.encrypt(data))
            except ssl.SSLError as error:
                log.info("a connection is broken: %s", error)
                transport.abort()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a task that ends with the connection; refuse it if there are too many."""
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            raise AmqpFault("too much was asked for at once", condition=TOO_MANY)
        task = self._server.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def count_link(self, change: int) -> None:
        """Change the number of links; refuse too many."""
        self._links += change
        if self._links > _MAX_LINKS:
            raise AmqpFault("there are too many links", condition=TOO_MANY)

    @property
    def grants(self) -> Iterable[Grant]:
        """What the tokens of this connection allow, one grant per path."""
        return tuple(self._grants.values())

    def allows(self, path: str) -> bool:
        """Return whether a token covers this path."""
        return any(grant.covers(path) for grant in self._grants.values())

    def grant(self, *, token: object, kind: object, audience: object) -> None:
        """Add what a token allows, or refuse the token."""
        now = self.clock.utc_now()
        found = self.options.keys.grant(token, kind=kind, audience=audience, now=now)
        if len(self._grants) >= _MAX_GRANTS and found.path not in self._grants:
            raise RequestRefused(
                "amqp:resource-limit-exceeded", "Too many tokens on one connection."
            )
        self._add_grant(found)

    def hold(self, size: int) -> None:
        """Count bytes that are not stored yet; beyond the limit, reading pauses."""
        self._unsettled_bytes += size
        self._server.hold(size)
        self.update_reading()

    def release(self, size: int) -> None:
        """Count these bytes as stored; reading may resume."""
        self._unsettled_bytes -= size
        self._server.release(size)
        self.update_reading()

    def count_partial(self, size: int) -> None:
        """Count the bytes of incomplete deliveries; ``size`` may be negative.

        They do not pause reading: then the rest of the delivery could never arrive.
        """
        self._partial_bytes += size
        has_room = self._server.gather(size)
        if size > 0 and (not has_room or self._partial_bytes > self.options.max_unsettled_bytes):
            raise AmqpFault("too many deliveries are not whole", condition=TOO_MANY)

    def update_reading(self) -> None:
        """Pause or resume reading: read while the client reads and few bytes are not stored."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        has_room = self._unsettled_bytes < self.options.max_unsettled_bytes
        is_reading = has_room and self._server.has_room and self.writable.is_set()
        if is_reading == self._is_reading:
            return
        self._is_reading = is_reading
        if is_reading:
            self._last_received_at = self.clock.boottime_s()
            transport.resume_reading()
        else:
            transport.pause_reading()

    def close(self, reason: RequestRefused | None = None) -> None:
        """Close, with a reason if there is one. Safe to call twice."""
        if self._is_closing or self._transport is None:
            return
        if reason is not None:
            log.info("a connection is closed: %s", reason.description[:_MAX_REASON_CHARS])
        if self._is_open:
            text = "" if reason is None else reason.description[:_MAX_REASON_CHARS]
            error = None if reason is None else Error(condition=reason.condition, description=text)
            self.write(frame(0, Close(error=error).encode()))
        self._is_closing = True
        self._closed_at = self.clock.boottime_s()
        if self._tls is not None:
            self._write_tls(self._tls.close_notify())
        self._transport.close()

    def shut_down(self, reason: RequestRefused) -> None:
        """Detach all links with this reason, then close."""
        for session in tuple(self._sessions.values()):
            for link in session.links:
                link.refuse(reason)
        self.close(reason)

    def abort(self) -> None:
        """Close immediately; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def tick(self, now: float, wall: datetime) -> None:
        """Enforce the timeouts and expire tokens; the server calls this regularly."""
        transport = self._transport
        if transport is None:
            return
        idle_s = 2 * self.options.idle_timeout.total_seconds()
        if self._write_blocked_since is not None and now - self._write_blocked_since > idle_s:
            transport.abort()  # it does not read: a close frame would not get through
        elif self._is_closing:
            if now - self._closed_at > _CLOSE_TIMEOUT_S:
                transport.abort()
        elif (
            not self._grants
            and now - self._began_at > self.options.handshake_timeout.total_seconds()
        ):
            self.close(RequestRefused(UNAUTHORIZED, "No token came in time."))
        elif now - self._last_received_at > idle_s and self._is_reading:
            text = f"The connection was inactive for more than the allowed {idle_s * 1000:.0f} "
            self.close(RequestRefused(FORCED, f"{text}milliseconds."))
        else:
            self._expire(wall)

    # ---------------------------------------------------------------------- parts

    def _count_buffered(self, size: int) -> None:
        """Set how many bytes of an incomplete frame are buffered."""
        change, self._buffered_bytes = size - self._buffered_bytes, size
        if change:
            self.count_partial(change)

    def _decrypt(self, data: bytes) -> bytes:
        if self._tls is None:
            return data
        found = self._tls.decrypt(data)
        self._write_tls(self._tls.pending_output())
        return found

    def _write_tls(self, data: bytes) -> None:
        """Send bytes that TLS has made, as they are."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _on_any_frame(self, found: Frame) -> None:
        if not self._grants:
            self._frames += 1
            if (
                self._frames > _MAX_UNAUTHENTICATED_FRAMES
                or self._unauthenticated_bytes > _MAX_UNAUTHENTICATED_BYTES
            ):
                raise AmqpFault("too much came without a token", condition=UNAUTHORIZED)
        if found.kind == HEADER:
            self._on_header(bytes(found.body))
        elif found.kind == SASL:
            self._on_sasl(found)
        elif found.kind == AMQP:
            if len(found.body):
                self._on_frame(found)
        else:
            raise AmqpFault(f"there is no kind of frame {found.kind}")

    def _on_header(self, header: bytes) -> None:
        if self._is_open or header not in {SASL_HEADER, AMQP_HEADER}:
            self.write(AMQP_HEADER)
            raise AmqpFault("this is AMQP 1.0, and something else was asked for")
        self.write(header)
        if header == SASL_HEADER:
            self.write(frame(0, SaslMechanisms(mechanisms=self._mechanisms).encode(), SASL))

    def _on_sasl(self, found: Frame) -> None:
        what, _ = self._parse(found)
        if not isinstance(what, SaslInit) or self._is_open:
            raise AmqpFault("this has no place in signing in")
        code = 0
        if what.mechanism not in self._mechanisms:
            code = 1
        elif what.mechanism == _PLAIN:
            granted = self.options.keys.grant_plain(what.initial_response)
            if granted is None:
                code = 1
            else:
                self._add_grant(granted)
        self.write(frame(0, SaslOutcome(code=code).encode(), SASL))
        if code:
            raise AmqpFault("signing in failed", condition=UNAUTHORIZED)

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        """The mechanisms on offer: the key itself (PLAIN) only over TLS."""
        return (_ANONYMOUS,) if self.options.tls is None else (_ANONYMOUS, _PLAIN)

    def _parse(self, found: Frame) -> tuple[Composite, int]:
        max_bytes = _MAX_CONTROL_BYTES if self._grants else _MAX_UNAUTHENTICATED_CONTROL_BYTES
        return parse(found.body, max_bytes=max_bytes, max_values=_MAX_CONTROL_VALUES)

    def _on_frame(self, found: Frame) -> None:
        what, at = self._parse(found)
        if isinstance(what, Open):
            self._on_open(what)
            return
        if not self._is_open:
            raise AmqpFault("the connection is not open", condition="amqp:illegal-state")
        if isinstance(what, Close):
            self.close()
            return
        self._on_session_frame(what, found.channel, found.body[at:])

    def _on_session_frame(self, what: Composite, channel: int, payload: memoryview) -> None:
        session = self._sessions.get(channel)
        if isinstance(what, Begin):
            if session is not None or len(self._sessions) >= self.options.max_sessions:
                raise AmqpFault("the channel is in use, or there are too many sessions")
            self._sessions[channel] = EndpointSession(self, channel, what)
        elif session is None:
            # Some clients detach links after they have ended the session.
            if channel not in self._ended:
                raise AmqpFault(f"there is no session on the channel {channel}")
        elif isinstance(what, End):
            del self._sessions[channel]
            if len(self._ended) < self.options.max_sessions:
                self._ended.add(channel)
            session.on_closed()
            self.write(frame(channel, End().encode()))
        else:
            session.on_frame(what, payload)

    def _on_open(self, client: Open) -> None:
        if self._is_open:
            raise AmqpFault("the connection is open already", condition="amqp:illegal-state")
        self._is_open = True
        max_bytes = self.options.max_frame_bytes
        self.client_frame_bytes = max(min(client.max_frame_size, max_bytes), _MIN_FRAME_BYTES)
        if client.idle_time_out:
            self.spawn(self._send_heartbeats(max(client.idle_time_out / 2000, _MIN_HEARTBEAT_S)))
        answer = Open(
            container_id=CONTAINER,
            hostname=client.hostname,
            max_frame_size=max_bytes,
            channel_max=self.options.max_sessions - 1,
            idle_time_out=int(self.options.idle_timeout.total_seconds() * 1000),
        )
        self.write(frame(0, answer.encode()))

    def _add_grant(self, found: Grant) -> None:
        self._server.unauthenticated.discard(self)
        self._grants[found.path] = found
        self._reader.max_bytes = self.options.max_frame_bytes

    def _expire(self, wall: datetime) -> None:
        expired = [
            path
            for path, grant in self._grants.items()
            if grant.expires_at is not None and grant.expires_at <= wall
        ]
        for path in expired:
            del self._grants[path]
        if not expired:
            return
        if not self._grants:
            self._server.without_token(self)
        reason = RequestRefused(
            UNAUTHORIZED, "ExpiredToken: The token of this link is expired.", status=401
        )
        for session in tuple(self._sessions.values()):
            for link in session.links:
                if link.address.hub and not self.allows(link.address.path):
                    link.refuse(reason)
        self._began_at = self.clock.boottime_s()  # handshake_timeout again, for a new token

    async def _send_heartbeats(self, interval_s: float) -> None:
        """Send something often enough for the client's idle timeout."""
        while not self._is_closing:
            await self.clock.sleep(interval_s / 2)
            if self.clock.boottime_s() - self._last_sent_at >= interval_s / 2:
                self.write(EMPTY_FRAME)
