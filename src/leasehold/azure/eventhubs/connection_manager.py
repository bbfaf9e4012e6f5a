"""Keeps one connection to a hub, for all who read from it: made when needed, tended, made anew.

Guarantees:

* All partitions share one connection. Whoever needs it while it is being made waits for the same
  attempt; attempts that fail are repeated with growing pauses, until the patience is over.
* Heartbeats are sent before the server would miss them; a server that is silent is given up.
* Tokens are renewed when a tenth of their life is left.
* When its event loop ends, so does the connection, in good order if there is time for it.

Questions to a node of the hub, and its answers: ``$cbs`` for tokens, ``$management`` for facts.

Guarantees: an answer goes to the one who asked, however many ask at once, and no more are sent than
the node gives credit for. If the connection ends, all of them are told. A node may end its links
when nobody has asked for a while, as the service does: they are made anew for the next question.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import ssl
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import anyio

from leasehold.azure.amqp.composites import Source, Target
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import Message, read_message
from leasehold.azure.amqp.performatives import Attach
from leasehold.azure.amqp.types import Timestamp
from leasehold.azure.eventhubs.connection import IDLE_MS, HubConnection
from leasehold.azure.eventhubs.service_errors import (
    LOST,
    RequestContext,
    ServiceError,
    ServiceRefused,
    error_of,
    status_refusal,
)
from leasehold.azure.eventhubs.session import HubLink, PartialDelivery, answer
from leasehold.clock import new_suffix
from leasehold.core.backoff import Backoff
from leasehold.errors import StoreUnavailable, StoreUnusable, UsageError

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from leasehold.azure.amqp.performatives import Flow, Transfer
    from leasehold.azure.eventhubs.address import HubAddress
    from leasehold.azure.eventhubs.credentials import Token, TokenProvider
    from leasehold.azure.eventhubs.session import HubSession
    from leasehold.clock import Clock

CBS, MANAGEMENT = "$cbs", "$management"
_CREDIT = 1_000
_MAX_ANSWER_BYTES = 4 << 20
_CORRELATION = 5
_OK = range(200, 300)
_CODES = ("status-code", "statusCode")
_WORDS = ("status-description", "statusDescription")
_CONDITIONS = ("error-condition", "errorCondition")


class _Asking(HubLink):
    """Our requests go out here, once the server gives credit."""

    def __init__(self, session: HubSession, name: str, node: str) -> None:
        super().__init__(session, name)
        self._bell = asyncio.Event()
        self._sent = 0
        self._until = 0
        session.say(
            Attach(
                name=name,
                handle=self.handle,
                role=False,
                source=Source(address=node),
                target=Target(address=node),
                initial_delivery_count=0,
            )
        )

    def on_flow(self, flow: Flow) -> None:
        self._until = (flow.delivery_count or 0) + (flow.link_credit or 0)
        self._bell.set()

    def on_end(self, refusal: ServiceError) -> None:
        super().on_end(refusal)
        self._bell.set()

    async def send(self, payload: bytes, *, tag: bytes) -> None:
        """Send a request, when there is credit for it.

        Raises:
            Refused: the link has ended.
        """
        while self.refusal is None and self._sent >= self._until:
            self._bell.clear()
            await self._bell.wait()
        if self.refusal is not None:
            raise ServiceRefused(self.refusal)
        self._sent += 1
        self.session.transfer(self, payload, tag=tag)


class _Answers(HubLink):
    """The answers come in here."""

    def __init__(self, session: HubSession, name: str, node: str) -> None:
        super().__init__(session, name)
        self.waiting: dict[str, asyncio.Future[Message]] = {}
        self._gathering = PartialDelivery(max_bytes=_MAX_ANSWER_BYTES)
        self._delivered = 0
        self._used = 0
        session.say(
            Attach(
                name=name,
                handle=self.handle,
                role=True,
                source=Source(address=node),
                target=Target(address=node),
            )
        )

    def on_attach(self, attach: Attach) -> None:
        self._delivered = attach.initial_delivery_count or 0
        super().on_attach(attach)
        self.session.flow(self, delivered=self._delivered, credit=_CREDIT)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        whole = self._gathering.add(transfer, payload)
        if whole is None:
            return
        head, data = whole
        self._delivered += 1
        self._used += 1
        if self._used >= _CREDIT // 2:
            self._used = 0
            self.session.flow(self, delivered=self._delivered, credit=_CREDIT)
        if not head.settled and head.delivery_id is not None:
            self.session.accept(head.delivery_id, head.delivery_id)
        message = read_message(data)
        correlation = message.properties[_CORRELATION : _CORRELATION + 1]
        asked = self.waiting.pop(str(correlation[0]) if correlation else "", None)
        if asked is not None and not asked.done():
            asked.set_result(message)

    def on_end(self, refusal: ServiceError) -> None:
        super().on_end(refusal)
        waiting, self.waiting = self.waiting, {}
        for asked in waiting.values():
            if not asked.done():
                asked.set_exception(ServiceRefused(refusal))


class Requests:
    """One node. Made and used in one event loop."""

    def __init__(self, session: HubSession, node: str) -> None:
        """Attach both ways."""
        self._session = session
        self._node = node
        self._numbers = count(1)
        self._links: tuple[HubLink, ...] = ()
        self._attach()

    async def ask(self, what: Mapping[str, object], value: object = None) -> Message:
        """The answer to a request with these application properties.

        Raises:
            Refused: the node has refused it, or the connection was lost.
        """
        if self._session.refusal is not None:
            raise ServiceRefused(self._session.refusal)
        if self._answers.over or self._asking.over:
            self._attach()
        answers, asking = self._answers, self._asking
        await asyncio.shield(answers.attached)
        if answers.refusal is not None:
            raise ServiceRefused(answers.refusal)
        name = f"leasehold-{next(self._numbers)}"
        asked: asyncio.Future[Message] = answer()
        answers.waiting[name] = asked
        request = Message(
            properties=(name,), application_properties=dict(what), value=value
        ).encode()
        try:
            await asking.send(request, tag=name.encode())
            found = await asked
        finally:
            answers.waiting.pop(name, None)
        _check(found)
        return found

    def _attach(self) -> None:
        number = next(self._numbers)
        for link in self._links:
            link.detach()  # one of the two may still be there; who waits on it is told
        self._answers = _Answers(self._session, f"{self._node}-answers-{number}", self._node)
        self._asking = _Asking(self._session, f"{self._node}-requests-{number}", self._node)
        self._links = (self._answers, self._asking)


def _check(found: Message) -> None:
    status = found.application_properties
    code = _first(status, _CODES)
    if not isinstance(code, int):
        raise AmqpFault("an answer of the hub says no status")
    if code not in _OK:
        words, condition = _first(status, _WORDS), _first(status, _CONDITIONS)
        raise ServiceRefused(status_refusal(code, str(words or ""), str(condition or "")))


def _first(found: Mapping[object, object], names: tuple[str, ...]) -> object:
    return next((found[name] for name in names if name in found), None)


log = logging.getLogger("leasehold.eventhubs")

T = TypeVar("T")

PAUSES = Backoff(base_s=0.1, max_s=5.0)
STEP_S = 30.0  # how long the server may take for one answer
_GOODBYE_S = 1.0
_LONGEST_LOOK_S = 15.0
_RENEW_AT = 0.9
_SHORTEST_LIFE_S = 10.0
_PLAIN_HINT = "a server without TLS needs UseDevelopmentEmulator=true in the connection string"
_NO_TLS = (ssl.SSLError, ConnectionResetError)  # how a server takes TLS that has none


@dataclass(slots=True, kw_only=True)
class LiveConnection:
    """A connection that is open, and the two nodes of the hub on it."""

    connection: HubConnection
    cbs: Requests
    management: Requests = field(init=False)
    token: str = field(default="", repr=False)
    renew_at_s: dict[str, float] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ConnectionManager:
    """For one event loop at a time; if that has ended, the next one begins anew."""

    def __init__(
        self,
        address: HubAddress,
        *,
        tokens: TokenProvider,
        clock: Clock,
        rng: random.Random,
        patience_s: float,
    ) -> None:
        """Not connected."""
        self._address = address
        self._tokens = tokens
        self._clock = clock
        self._rng = rng
        self._patience_s = patience_s
        self._container = f"leasehold-{new_suffix()}"
        self._live: LiveConnection | None = None
        self._connecting: asyncio.Task[LiveConnection] | None = None
        self._tending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.connections = 0

    @property
    def audience(self) -> str:
        """What a token for the whole hub is for."""
        return f"sb://{self._address.namespace}/{self._address.hub}"

    async def live(self) -> LiveConnection:
        """The connection, made now if there is none.

        Raises:
            StoreUnavailable: it could not be made until the patience was over.
            StoreUnusable: we are not let in.
            UnknownStream: there is no such hub.
            UsageError: it was closed meanwhile.
        """
        if self._closed:
            raise UsageError(self._words_of_closed())
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._live, self._connecting, self._tending = loop, None, None, None
        if self._live is not None and not self._live.connection.over.done():
            return self._live
        if self._connecting is None or self._connecting.done():
            self._connecting = loop.create_task(self._connected())
            self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise UsageError(
                    self._words_of_closed()
                ) from None  # nobody has cancelled who waits here
            raise

    async def asked(
        self, ask: Callable[[LiveConnection], Awaitable[T]], asked: RequestContext
    ) -> T:
        """The answer of the hub, asked again while the trouble is one that passes.

        Raises:
            LeaseholdError: it was refused, or the patience was over.
        """
        until_s = self._clock.boottime_s() + self._patience_s
        failures = 0
        while True:
            live = await self.live()
            try:
                return await self._clock.bounded(ask(live), seconds=STEP_S)
            except ServiceRefused as refused:
                trouble: Exception = refused
                error = error_of(refused.refusal, asked)
                if error is not None:
                    raise error from refused
            except (TimeoutError, AmqpFault) as slow:
                trouble = slow
            failures += 1
            if self._clock.boottime_s() >= until_s:
                raise self.unavailable(trouble) from trouble
            await self._clock.sleep(PAUSES.pause_s(failures, self._rng))

    async def session(self, live: LiveConnection, audience: str) -> HubSession:
        """A session for another link, with a token for what it reads.

        Raises:
            Refused: the token was refused, or the connection was lost.
        """
        async with live.turn:  # all partitions begin at once, and have the same audience
            if audience not in live.renew_at_s:
                await self._put_token(live, audience)
        return await live.connection.session()

    def distrust(self, audience: str) -> None:
        """Show the hub a new token before the next link for this audience."""
        if self._live is not None:
            self._live.renew_at_s.pop(audience, None)

    async def close(self) -> None:
        """End the connection, for good. Again is harmless; from another loop nothing is left."""
        self._closed = True
        tasks = [each for each in (self._connecting, self._tending) if each is not None]
        if self._loop is asyncio.get_running_loop():
            for task in tasks:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)
        self._live = self._connecting = self._tending = None

    def unavailable(self, trouble: Exception) -> StoreUnavailable:
        """The error for trouble that did not pass."""
        words = _reason(trouble)
        if self._address.tls and not isinstance(trouble, socket.gaierror):
            words += f" ({_PLAIN_HINT})"
        return StoreUnavailable(
            f"{self._address} can not be used: {words}. Check the name of the namespace, that port "
            f"{self._address.port} is open for this host, and the state of the service"
        )

    def _words_of_closed(self) -> str:
        return f"the source of {self._address.hub!r} is closed: open another one"

    # -------------------------------------------------------------- making

    async def _connected(self) -> LiveConnection:
        until_s = self._clock.boottime_s() + self._patience_s
        context = _context(self._address)
        failures = 0
        while True:
            try:
                return await self._clock.bounded(self._made(context), seconds=STEP_S)
            except ssl.SSLCertVerificationError as wrong:
                raise StoreUnusable(
                    f"the certificate of {self._address} is not to be trusted "
                    f"({wrong.verify_message}): check the host, or name its authority with ?ca=FILE"
                ) from wrong
            except ServiceRefused as refused:
                trouble: Exception = refused
                error = error_of(refused.refusal, RequestContext(address=self._address))
                if error is not None:
                    raise error from refused
            except (OSError, TimeoutError, AmqpFault) as failed:
                trouble = failed
            failures += 1
            if self._clock.boottime_s() >= until_s:
                raise self.unavailable(trouble) from trouble
            if failures == 1:
                self._tell_first(trouble)
            await self._clock.sleep(PAUSES.pause_s(failures, self._rng))

    def _tell_first(self, trouble: Exception) -> None:
        """Nobody should wait for the end of the patience to hear what is waited for."""
        log.warning(
            "no connection to %s:%d yet (%s); trying for %.3g s%s",
            self._address.host,
            self._address.port,
            _reason(trouble),
            self._patience_s,
            f"; {_PLAIN_HINT}" if self._address.tls and isinstance(trouble, _NO_TLS) else "",
        )

    async def _made(self, context: ssl.SSLContext | None) -> LiveConnection:
        connection = await HubConnection.open(
            self._address, clock=self._clock, container=self._container, context=context
        )
        try:
            session = await connection.session()
            live = LiveConnection(connection=connection, cbs=Requests(session, CBS))
            await self._put_token(live, self.audience)
            live.management = Requests(session, MANAGEMENT)  # refused to those without a token
        except BaseException:
            connection.abort(
                ServiceError(condition=LOST, description="given up while it was opened")
            )
            raise
        self.connections += 1
        self._live = live
        self._tending = asyncio.get_running_loop().create_task(self._tend(live))
        return live

    async def _put_token(self, live: LiveConnection, audience: str) -> None:
        token = await self._tokens.token(audience)
        await live.cbs.ask(
            {
                "operation": "put-token",
                "type": token.kind,
                "name": audience,
                "expiration": Timestamp(int(token.expires_at.timestamp() * 1000)),
            },
            token.text,
        )
        live.renew_at_s[audience] = self._clock.boottime_s() + _RENEW_AT * self._life_s(token)
        if audience == self.audience:
            live.token = token.text

    def _life_s(self, token: Token) -> float:
        left_s = (token.expires_at - self._clock.utc_now()).total_seconds()
        return max(left_s, _SHORTEST_LIFE_S)

    # ------------------------------------------------------------- tending

    async def _tend(self, live: LiveConnection) -> None:
        connection = live.connection
        peer = connection.peer
        idle_ms = (peer.idle_time_out if peer else None) or IDLE_MS
        beat_s = max(min(idle_ms, IDLE_MS) / 2e3, 0.05)
        try:
            while not connection.over.done():
                await self._sleep(live, beat_s)
                now_s = self._clock.boottime_s()
                if now_s - connection.heard_s > 2 * IDLE_MS / 1e3:
                    words = f"the server was silent for {now_s - connection.heard_s:.0f} s"
                    connection.abort(ServiceError(condition=LOST, description=words))
                elif now_s - connection.said_s >= beat_s / 2:
                    connection.beat()
                await self._renew(live, now_s)
        finally:
            connection.close()
            with anyio.CancelScope(shield=True):
                try:
                    await self._clock.bounded(connection.gone, seconds=_GOODBYE_S)
                except TimeoutError:
                    connection.abort(ServiceError(condition=LOST, description="closed by us"))

    async def _sleep(self, live: LiveConnection, beat_s: float) -> None:
        """Until the next beat or renewal is due, or the connection is over."""
        due_s = min(live.renew_at_s.values(), default=math.inf) - self._clock.boottime_s()
        wait_s = max(min(beat_s, due_s, _LONGEST_LOOK_S), 0.01)
        try:
            await self._clock.bounded(asyncio.shield(live.connection.over), seconds=wait_s)
        except TimeoutError:
            return

    async def _renew(self, live: LiveConnection, now_s: float) -> None:
        for audience, due_s in list(live.renew_at_s.items()):
            if now_s < due_s or live.connection.over.done():
                continue
            try:
                await self._clock.bounded(self._put_token(live, audience), seconds=STEP_S)
            except (ServiceRefused, StoreUnavailable, TimeoutError, AmqpFault) as error:
                # The old one is still good for a while; the hub ends the links if it ends.
                live.renew_at_s[audience] = now_s + _SHORTEST_LIFE_S
                log.warning("%s: its token can not be renewed: %s", self._address, error)


def _reason(trouble: Exception) -> str:
    """Without the number and the address that Python puts around the words of the system."""
    if isinstance(trouble, socket.gaierror):
        return trouble.strerror or "the name of the host is not known"
    number = trouble.errno if isinstance(trouble, OSError) else None
    is_of_system = number is not None and number > 0 and not isinstance(trouble, ssl.SSLError)
    usual = os.strerror(number) if number is not None and is_of_system else ""
    silent = "the server hung up" if isinstance(trouble, ConnectionError) else "no answer in time"
    return usual or str(trouble) or silent


def _context(address: HubAddress) -> ssl.SSLContext | None:
    """What TLS needs.

    Raises:
        UsageError: the file with the certificates can not be used.
    """
    if not address.tls:
        return None
    try:
        return ssl.create_default_context(cafile=address.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"?ca={address.ca} can not be used: {error}; name a file with certificates in PEM"
        ) from error
