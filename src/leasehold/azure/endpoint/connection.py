"""One connection of a client, from its first byte to its last.

Guarantees: whatever bytes come, at most one frame and the deliveries on their way into the log are
in memory, and the connection is closed with a reason when they make no sense. Someone without a
token gets no further than the node that takes tokens, and not for long. A client that does not read
is not read from either.

TLS of one connection, without a socket: bytes in, bytes out.

That of asyncio keeps a buffer of 256 KiB for each connection, also for one that says nothing. Here
nothing is made before the first byte, and no buffer holds more than a few records.
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
    EMPTY,
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

_PIECE_BYTES = 16 << 10  # a record holds as many; what the buffers once held they keep


class TlsLayer:
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


log = logging.getLogger("leasehold.azure.endpoint")

CONTAINER = "leasehold"
_ANONYMOUS, _PASSWORD = "ANONYMOUS", "PLAIN"
_STRANGER_FRAMES = 200
_STRANGER_FRAME_BYTES = 64 << 10
_STRANGER_BYTES = 256 << 10
# Of a performative: some of it may be kept for as long as its link.
_STRANGER_CONTROL_BYTES = 4 << 10
_MAX_CONTROL_BYTES = 16 << 10
_MAX_CONTROL_VALUES = 1000
_MAX_LINKS = 4096
_MAX_TASKS = 2 * _MAX_LINKS
_MAX_WORDS = 500  # of a reason: some repeat what the client has said
_MIN_FRAME_BYTES = 512
_MAX_GRANTS = 256
_HIGH_WATER_BYTES = 1 << 20
_SHORTEST_BEAT_S = 0.2
_FAREWELL_S = 5.0


class ClientConnection(asyncio.Protocol):
    """Made by the server for each that comes in."""

    def __init__(self, server: HubServer) -> None:
        """Nothing has come yet."""
        self._server = server
        self.options: HubOptions = server.options
        self.streams: Hubs = server.streams
        self.epochs: ReaderEpochs = server.epochs
        self.retries: Retries = server.retries
        self.clock: Clock = server.clock
        self.peer_frame_bytes = _MIN_FRAME_BYTES
        self.writable = asyncio.Event()
        self.writable.set()
        self._transport: asyncio.Transport | None = None
        tls = self.options.tls
        self._encryption = None if tls is None else TlsLayer(tls)
        self._reader = FrameReader(min(_STRANGER_FRAME_BYTES, self.options.max_frame_bytes))
        self._sessions: dict[int, EndpointSession] = {}
        self._ended: set[int] = set()
        self._grants: dict[str, Grant] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._frames = self._stranger_bytes = 0
        self._links = 0
        self._is_open = False
        self._is_closing = False
        self._unsettled_bytes = 0
        self._partial_bytes = self._rest_bytes = 0
        now = server.clock.boottime_s()
        self._began_at = self._heard_at = self._said_at = now
        self._closed_at = now
        self._stuck_since: float | None = None
        self._is_reading = True

    # ------------------------------------------------------- the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the server know, which may have no room."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - the server makes no other
        self._transport = transport
        if not self._server.enter(self):
            transport.abort()
        else:
            transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """All of it has ended."""
        del exc
        self._is_closing = True
        self._server.leave(self)
        self._count_rest(0)
        self.writable.set()
        for task in tuple(self._tasks):
            task.cancel()
        for session in self._sessions.values():
            session.over()
        self._sessions.clear()

    def pause_writing(self) -> None:
        """The client does not read: it is not listened to until it does."""
        self.writable.clear()
        self._stuck_since = self.clock.boottime_s()
        self.listen()

    def resume_writing(self) -> None:
        """It reads again."""
        self.writable.set()
        self._stuck_since = None
        self.listen()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        self._heard_at = self.clock.boottime_s()
        try:
            data = self._decrypted(data)
            if not self._grants:
                self._stranger_bytes += len(data)
            for each in self._reader.feed(data):
                if self._is_closing:
                    return
                self._take(each)
            self._count_rest(self._reader.waiting_bytes)
            if self._encryption is not None and self._encryption.is_over:
                self.close()
        except ssl.SSLError as error:
            log.info("a connection is closed: %s", error)
            self.close()
        except AmqpFault as fault:
            self.close(RequestRefused(fault.condition, fault.description))
        except Exception as error:
            log.exception("a connection ends")
            self.close(RequestRefused("amqp:internal-error", type(error).__name__))

    # -------------------------------------------------------------- for its parts

    def write(self, data: bytes) -> None:
        """Send bytes, if anybody is there."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        if not transport.is_closing():  # it may be broken, and nobody was told yet
            self._said_at = self.clock.boottime_s()
            try:
                transport.write(data if self._encryption is None else self._encryption.sealed(data))
            except ssl.SSLError as error:
                log.info("a connection is broken: %s", error)
                transport.abort()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something beside; it ends with the connection.

        Raises:
            AmqpFault: there is too much of it.
        """
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            raise AmqpFault("too much was asked for at once", condition=TOO_MANY)
        task = self._server.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def count_link(self, change: int) -> None:
        """There is a link more, or one less.

        Raises:
            AmqpFault: there are too many.
        """
        self._links += change
        if self._links > _MAX_LINKS:
            raise AmqpFault("there are too many links", condition=TOO_MANY)

    @property
    def grants(self) -> Iterable[Grant]:
        """What the tokens of this connection allow."""
        return tuple(self._grants.values())

    def allows(self, path: str) -> bool:
        """Whether a token covers this path."""
        return any(grant.covers(path) for grant in self._grants.values())

    def grant(self, *, token: object, kind: object, audience: object) -> None:
        """Take a token.

        Raises:
            Refused: it does not count.
        """
        now = self.clock.utc_now()
        found = self.options.keys.grant(token, kind=kind, audience=audience, now=now)
        if len(self._grants) >= _MAX_GRANTS and found.path not in self._grants:
            raise RequestRefused(
                "amqp:resource-limit-exceeded", "Too many tokens on one connection."
            )
        self._granted(found)

    def hold(self, size: int) -> None:
        """So many bytes more are on their way into the log."""
        self._unsettled_bytes += size
        self._server.hold(size)
        self.listen()

    def release(self, size: int) -> None:
        """They are there."""
        self._unsettled_bytes -= size
        self._server.release(size)
        self.listen()

    def gather(self, size: int) -> None:
        """So many bytes more, or less, are here of deliveries that are not whole.

        They do not keep anybody from being listened to: the rest of them could never come.

        Raises:
            AmqpFault: there are too many.
        """
        self._partial_bytes += size
        has_room = self._server.gather(size)
        if size > 0 and (not has_room or self._partial_bytes > self.options.max_unsettled_bytes):
            raise AmqpFault("too many deliveries are not whole", condition=TOO_MANY)

    def listen(self) -> None:
        """Read from the client while it reads, and there is not too much on its way."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        has_room = self._unsettled_bytes < self.options.max_unsettled_bytes
        is_reading = has_room and self._server.has_room and self.writable.is_set()
        if is_reading == self._is_reading:
            return
        self._is_reading = is_reading
        if is_reading:
            self._heard_at = self.clock.boottime_s()
            transport.resume_reading()
        else:
            transport.pause_reading()

    def close(self, why: RequestRefused | None = None) -> None:
        """Say good-bye, with a reason if there is one. Again is harmless."""
        if self._is_closing or self._transport is None:
            return
        if why is not None:
            log.info("a connection is closed: %s", why.description[:_MAX_WORDS])
        if self._is_open:
            words = "" if why is None else why.description[:_MAX_WORDS]
            error = None if why is None else Error(condition=why.condition, description=words)
            self.write(frame(0, Close(error=error).encode()))
        self._is_closing = True
        self._closed_at = self.clock.boottime_s()
        if self._encryption is not None:
            self._answer(self._encryption.farewell())
        self._transport.close()

    def farewell(self, why: RequestRefused) -> None:
        """End all links with this reason, and then the connection."""
        for session in tuple(self._sessions.values()):
            for link in session.links:
                link.refuse(why)
        self.close(why)

    def abort(self) -> None:
        """Hang up, whatever is on its way."""
        if self._transport is not None:
            self._transport.abort()

    def tick(self, now: float, wall: datetime) -> None:
        """Now and then: what has to be done without a word of the client."""
        transport = self._transport
        if transport is None:
            return
        idle_s = 2 * self.options.idle_timeout.total_seconds()
        if self._stuck_since is not None and now - self._stuck_since > idle_s:
            transport.abort()  # it does not read: not even a word would get through
        elif self._is_closing:
            if now - self._closed_at > _FAREWELL_S:
                transport.abort()
        elif (
            not self._grants
            and now - self._began_at > self.options.handshake_timeout.total_seconds()
        ):
            self.close(RequestRefused(UNAUTHORIZED, "No token came in time."))
        elif now - self._heard_at > idle_s and self._is_reading:
            words = f"The connection was inactive for more than the allowed {idle_s * 1000:.0f} "
            self.close(RequestRefused(FORCED, f"{words}milliseconds."))
        else:
            self._expire(wall)

    # ---------------------------------------------------------------------- parts

    def _count_rest(self, size: int) -> None:
        """So many bytes of a frame are here that is not whole.

        Raises:
            AmqpFault: they are too many, with those of all others.
        """
        change, self._rest_bytes = size - self._rest_bytes, size
        if change:
            self.gather(change)

    def _decrypted(self, data: bytes) -> bytes:
        """What the client says with these bytes.

        Raises:
            ssl.SSLError: they make no sense.
        """
        if self._encryption is None:
            return data
        found = self._encryption.opened(data)
        self._answer(self._encryption.answer())
        return found

    def _answer(self, data: bytes) -> None:
        """Send what TLS itself has to say."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _take(self, found: Frame) -> None:
        if not self._grants:
            self._frames += 1
            if self._frames > _STRANGER_FRAMES or self._stranger_bytes > _STRANGER_BYTES:
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
        what, _ = self._parsed(found)
        if not isinstance(what, SaslInit) or self._is_open:
            raise AmqpFault("this has no place in signing in")
        code = 0
        if what.mechanism not in self._mechanisms:
            code = 1
        elif what.mechanism == _PASSWORD:
            granted = self.options.keys.grant_plain(what.initial_response)
            if granted is None:
                code = 1
            else:
                self._granted(granted)
        self.write(frame(0, SaslOutcome(code=code).encode(), SASL))
        if code:
            raise AmqpFault("signing in failed", condition=UNAUTHORIZED)

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        """How one may sign in: with the key itself only where nobody else can read it."""
        return (_ANONYMOUS,) if self.options.tls is None else (_ANONYMOUS, _PASSWORD)

    def _parsed(self, found: Frame) -> tuple[Composite, int]:
        most = _MAX_CONTROL_BYTES if self._grants else _STRANGER_CONTROL_BYTES
        return parse(found.body, max_bytes=most, max_values=_MAX_CONTROL_VALUES)

    def _on_frame(self, found: Frame) -> None:
        what, at = self._parsed(found)
        if isinstance(what, Open):
            self._on_open(what)
            return
        if not self._is_open:
            raise AmqpFault("the connection is not open", condition="amqp:illegal-state")
        if isinstance(what, Close):
            self.close()
            return
        self._in_session(what, found.channel, found.body[at:])

    def _in_session(self, what: Composite, channel: int, payload: memoryview) -> None:
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
            session.over()
            self.write(frame(channel, End().encode()))
        else:
            session.take(what, payload)

    def _on_open(self, asked: Open) -> None:
        if self._is_open:
            raise AmqpFault("the connection is open already", condition="amqp:illegal-state")
        self._is_open = True
        most = self.options.max_frame_bytes
        self.peer_frame_bytes = max(min(asked.max_frame_size, most), _MIN_FRAME_BYTES)
        if asked.idle_time_out:
            self.spawn(self._beat(max(asked.idle_time_out / 2000, _SHORTEST_BEAT_S)))
        answer = Open(
            container_id=CONTAINER,
            hostname=asked.hostname,
            max_frame_size=most,
            channel_max=self.options.max_sessions - 1,
            idle_time_out=int(self.options.idle_timeout.total_seconds() * 1000),
        )
        self.write(frame(0, answer.encode()))

    def _granted(self, found: Grant) -> None:
        self._grants[found.path] = found
        self._reader.max_bytes = self.options.max_frame_bytes

    def _expire(self, wall: datetime) -> None:
        over = [
            path
            for path, grant in self._grants.items()
            if grant.expires_at is not None and grant.expires_at <= wall
        ]
        for path in over:
            del self._grants[path]
        if not over:
            return
        why = RequestRefused(
            UNAUTHORIZED, "ExpiredToken: The token of this link is expired.", status=401
        )
        for session in tuple(self._sessions.values()):
            for link in session.links:
                if link.address.hub and not self.allows(link.address.path):
                    link.refuse(why)
        self._began_at = self.clock.boottime_s()  # time for a new one

    async def _beat(self, every_s: float) -> None:
        """Let the client hear something often enough, for as long as the connection is open."""
        while not self._is_closing:
            await self.clock.sleep(every_s / 2)
            if self.clock.boottime_s() - self._said_at >= every_s / 2:
                self.write(EMPTY)
