"""Keep one connection to a hub for all its readers: connect on demand, renew tokens, reconnect.

Guarantees:

* All partitions share one connection, and one attempt to connect. Attempts that fail are repeated
  with growing pauses, until the timeout.
* Heartbeats are sent before the server would miss them; a silent server is disconnected.
* Tokens are renewed when a tenth of their life is left.
* When its event loop ends, so does the connection, gracefully if there is time for it.
* Requests to the nodes of the hub (``$cbs`` for tokens, ``$management``) may run concurrently. No
  more are sent than the node gives credit for; if the connection ends, all of them fail. The
  service ends idle links to a node: the next request attaches new ones.
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
    status_error,
    to_leasehold_error,
)
from leasehold.azure.eventhubs.session import HubLink, PartialDelivery, new_future
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
_DESCRIPTIONS = ("status-description", "statusDescription")
_CONDITIONS = ("error-condition", "errorCondition")


class _HubRequestLink(HubLink):
    """The link for requests, sent as the node gives credit."""

    def __init__(self, session: HubSession, name: str, node: str) -> None:
        super().__init__(session, name)
        self._wakeup = asyncio.Event()
        self._sent = 0
        self._credit_until = 0
        session.send(
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
        self._credit_until = (flow.delivery_count or 0) + (flow.link_credit or 0)
        self._wakeup.set()

    def on_end(self, service_error: ServiceError) -> None:
        super().on_end(service_error)
        self._wakeup.set()

    async def send(self, payload: bytes, *, tag: bytes) -> None:
        """Send a request as soon as there is credit for it."""
        while self.service_error is None and self._sent >= self._credit_until:
            self._wakeup.clear()
            await self._wakeup.wait()
        if self.service_error is not None:
            raise ServiceRefused(self.service_error)
        self._sent += 1
        self.session.transfer(self, payload, tag=tag)


class _HubAnswerLink(HubLink):
    """The link for answers; ``waiting`` has the pending requests by id."""

    def __init__(self, session: HubSession, name: str, node: str) -> None:
        super().__init__(session, name)
        self.waiting: dict[str, asyncio.Future[Message]] = {}
        self._partial = PartialDelivery(max_bytes=_MAX_ANSWER_BYTES)
        self._delivered = 0
        self._deliveries_used = 0
        session.send(
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
        whole = self._partial.add(transfer, payload)
        if whole is None:
            return
        head, data = whole
        self._delivered += 1
        self._deliveries_used += 1
        if self._deliveries_used >= _CREDIT // 2:
            self._deliveries_used = 0
            self.session.flow(self, delivered=self._delivered, credit=_CREDIT)
        if not head.settled and head.delivery_id is not None:
            self.session.accept(head.delivery_id, head.delivery_id)
        message = read_message(data)
        correlation = message.properties[_CORRELATION : _CORRELATION + 1]
        answer = self.waiting.pop(str(correlation[0]) if correlation else "", None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def on_end(self, service_error: ServiceError) -> None:
        super().on_end(service_error)
        waiting, self.waiting = self.waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ServiceRefused(service_error))


class Requests:
    """Requests to one node. For one event loop."""

    def __init__(self, session: HubSession, node: str) -> None:
        self._session = session
        self._node = node
        self._numbers = count(1)
        self._links: tuple[HubLink, ...] = ()
        self._attach()

    async def request(self, what: Mapping[str, object], value: object = None) -> Message:
        """Send a request with these application properties; return the answer."""
        if self._session.service_error is not None:
            raise ServiceRefused(self._session.service_error)
        if self._answer_link.is_closed or self._request_link.is_closed:
            self._attach()
        answer_link, request_link = self._answer_link, self._request_link
        await asyncio.shield(answer_link.attached)
        if answer_link.service_error is not None:
            raise ServiceRefused(answer_link.service_error)
        name = f"leasehold-{next(self._numbers)}"
        answer: asyncio.Future[Message] = new_future()
        answer_link.waiting[name] = answer
        request = Message(
            properties=(name,), application_properties=dict(what), value=value
        ).encode()
        try:
            await request_link.send(request, tag=name.encode())
            found = await answer
        finally:
            answer_link.waiting.pop(name, None)
        _check_status(found)
        return found

    def _attach(self) -> None:
        number = next(self._numbers)
        for link in self._links:
            link.detach()  # one of the two may still be attached; its requests fail
        self._answer_link = _HubAnswerLink(
            self._session, f"{self._node}-answers-{number}", self._node
        )
        self._request_link = _HubRequestLink(
            self._session, f"{self._node}-requests-{number}", self._node
        )
        self._links = (self._answer_link, self._request_link)


def _check_status(found: Message) -> None:
    status = found.application_properties
    code = _first(status, _CODES)
    if not isinstance(code, int):
        raise AmqpFault("an answer of the hub says no status")
    if code not in _OK:
        text, condition = _first(status, _DESCRIPTIONS), _first(status, _CONDITIONS)
        raise ServiceRefused(status_error(code, str(text or ""), str(condition or "")))


def _first(found: Mapping[object, object], names: tuple[str, ...]) -> object:
    return next((found[name] for name in names if name in found), None)


log = logging.getLogger("leasehold.eventhubs")

T = TypeVar("T")

RECONNECT_BACKOFF = Backoff(base_s=0.1, max_s=5.0)
ANSWER_TIMEOUT_S = 30.0  # for one answer of the server
_CLOSE_TIMEOUT_S = 1.0
_MAX_CHECK_INTERVAL_S = 15.0
_RENEW_FRACTION = 0.9
_MIN_TOKEN_LIFE_S = 10.0
_PLAIN_HINT = "a server without TLS needs UseDevelopmentEmulator=true in the connection string"
_PLAIN_SERVER_ERRORS = (
    ssl.SSLError,
    ConnectionResetError,
)  # with a server without TLS


@dataclass(slots=True, kw_only=True)
class LiveConnection:
    """An open connection, with the two nodes of the hub and the tokens it has."""

    connection: HubConnection
    cbs: Requests
    management: Requests = field(init=False)
    token: str = field(default="", repr=False)
    renew_at_s: dict[str, float] = field(default_factory=dict)
    token_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ConnectionManager:
    """The connection of a source. For one event loop at a time; a new loop connects again."""

    def __init__(
        self,
        address: HubAddress,
        *,
        tokens: TokenProvider,
        clock: Clock,
        rng: random.Random,
        timeout_s: float,
    ) -> None:
        self._address = address
        self._tokens = tokens
        self._clock = clock
        self._rng = rng
        self._timeout_s = timeout_s
        self._container = f"leasehold-{new_suffix()}"
        self._live: LiveConnection | None = None
        self._connecting: asyncio.Task[LiveConnection] | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.connections = 0

    @property
    def audience(self) -> str:
        """The audience of a token for the whole hub."""
        return f"sb://{self._address.namespace}/{self._address.hub}"

    async def live(self) -> LiveConnection:
        """Return the connection; connect if there is none."""
        if self._closed:
            raise UsageError(self._closed_message())
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._live, self._connecting, self._maintenance = loop, None, None, None
        if self._live is not None and not self._live.connection.ended.done():
            return self._live
        if self._connecting is None or self._connecting.done():
            self._connecting = loop.create_task(self._connect_with_retries())
            self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                # ``close`` has cancelled the attempt, not this caller.
                raise UsageError(self._closed_message()) from None
            raise

    async def request(
        self, send: Callable[[LiveConnection], Awaitable[T]], context: RequestContext
    ) -> T:
        """Send a request and return its result; retry transient failures until the timeout."""
        deadline_s = self._clock.boottime_s() + self._timeout_s
        failures = 0
        while True:
            live = await self.live()
            try:
                return await self._clock.bounded(send(live), seconds=ANSWER_TIMEOUT_S)
            except ServiceRefused as refused:
                cause: Exception = refused
                error = to_leasehold_error(refused.service_error, context)
                if error is not None:
                    raise error from refused
            except (TimeoutError, AmqpFault) as slow:
                cause = slow
            failures += 1
            if self._clock.boottime_s() >= deadline_s:
                raise self.unavailable(cause) from cause
            await self._clock.sleep(RECONNECT_BACKOFF.pause_s(failures, self._rng))

    async def session(self, live: LiveConnection, audience: str) -> HubSession:
        """Return a session for another link, after a token for its audience was accepted."""
        async with live.token_lock:  # all partitions start at the same time, with the same audience
            if audience not in live.renew_at_s:
                await self._put_token(live, audience)
        return await live.connection.session()

    def discard_token(self, audience: str) -> None:
        """Send a new token before the next link for this audience."""
        if self._live is not None:
            self._live.renew_at_s.pop(audience, None)

    async def close(self) -> None:
        """Close the connection permanently. Safe to call twice, and from another loop."""
        self._closed = True
        tasks = [each for each in (self._connecting, self._maintenance) if each is not None]
        if self._loop is asyncio.get_running_loop():
            for task in tasks:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*tasks, return_exceptions=True)
        self._live = self._connecting = self._maintenance = None

    def unavailable(self, cause: Exception) -> StoreUnavailable:
        """Return the error for a failure that lasted until the timeout."""
        text = _reason(cause)
        if self._address.tls and not isinstance(cause, socket.gaierror):
            text += f" ({_PLAIN_HINT})"
        return StoreUnavailable(
            f"{self._address} can not be used: {text}. Check the name of the namespace, that port "
            f"{self._address.port} is open for this host, and the state of the service"
        )

    def _closed_message(self) -> str:
        return f"the source of {self._address.hub!r} is closed: open another one"

    # ---------------------------------------------------------- connecting

    async def _connect_with_retries(self) -> LiveConnection:
        deadline_s = self._clock.boottime_s() + self._timeout_s
        context = _ssl_context(self._address)
        failures = 0
        while True:
            try:
                return await self._clock.bounded(self._connect(context), seconds=ANSWER_TIMEOUT_S)
            except ssl.SSLCertVerificationError as wrong:
                raise StoreUnusable(
                    f"the certificate of {self._address} is not to be trusted "
                    f"({wrong.verify_message}): check the host, or name its authority with ?ca=FILE"
                ) from wrong
            except ServiceRefused as refused:
                cause: Exception = refused
                error = to_leasehold_error(
                    refused.service_error, RequestContext(address=self._address)
                )
                if error is not None:
                    raise error from refused
            except (OSError, TimeoutError, AmqpFault) as failed:
                cause = failed
            failures += 1
            if self._clock.boottime_s() >= deadline_s:
                raise self.unavailable(cause) from cause
            if failures == 1:
                self._log_first_failure(cause)
            await self._clock.sleep(RECONNECT_BACKOFF.pause_s(failures, self._rng))

    def _log_first_failure(self, cause: Exception) -> None:
        """Warn at the first failure, long before the timeout reports it."""
        is_plain_server = self._address.tls and isinstance(cause, _PLAIN_SERVER_ERRORS)
        hint = f"; {_PLAIN_HINT}" if is_plain_server else ""
        log.warning(
            "no connection to %s:%d yet (%s); trying for %.3g s%s",
            self._address.host,
            self._address.port,
            _reason(cause),
            self._timeout_s,
            hint,
        )

    async def _connect(self, context: ssl.SSLContext | None) -> LiveConnection:
        connection = await HubConnection.open(
            self._address, clock=self._clock, container=self._container, context=context
        )
        try:
            session = await connection.session()
            live = LiveConnection(connection=connection, cbs=Requests(session, CBS))
            await self._put_token(live, self.audience)
            live.management = Requests(session, MANAGEMENT)  # refused without a token
        except BaseException:
            connection.abort(
                ServiceError(condition=LOST, description="given up while it was opened")
            )
            raise
        self.connections += 1
        self._live = live
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain(live))
        return live

    async def _put_token(self, live: LiveConnection, audience: str) -> None:
        token = await self._tokens.token(audience)
        await live.cbs.request(
            {
                "operation": "put-token",
                "type": token.kind,
                "name": audience,
                "expiration": Timestamp(int(token.expires_at.timestamp() * 1000)),
            },
            token.text,
        )
        renew_in_s = _RENEW_FRACTION * self._token_life_s(token)
        live.renew_at_s[audience] = self._clock.boottime_s() + renew_in_s
        if audience == self.audience:
            live.token = token.text

    def _token_life_s(self, token: Token) -> float:
        left_s = (token.expires_at - self._clock.utc_now()).total_seconds()
        return max(left_s, _MIN_TOKEN_LIFE_S)

    # --------------------------------------------------------- maintenance

    async def _maintain(self, live: LiveConnection) -> None:
        connection = live.connection
        remote_open = connection.remote_open
        idle_ms = (remote_open.idle_time_out if remote_open else None) or IDLE_MS
        heartbeat_s = max(min(idle_ms, IDLE_MS) / 2e3, 0.05)
        try:
            while not connection.ended.done():
                await self._sleep(live, heartbeat_s)
                now_s = self._clock.boottime_s()
                if now_s - connection.last_received_s > 2 * IDLE_MS / 1e3:
                    text = f"the server was silent for {now_s - connection.last_received_s:.0f} s"
                    connection.abort(ServiceError(condition=LOST, description=text))
                elif now_s - connection.last_sent_s >= heartbeat_s / 2:
                    connection.send_heartbeat()
                await self._renew(live, now_s)
        finally:
            connection.close()
            with anyio.CancelScope(shield=True):
                try:
                    await self._clock.bounded(connection.transport_closed, seconds=_CLOSE_TIMEOUT_S)
                except TimeoutError:
                    connection.abort(ServiceError(condition=LOST, description="closed by us"))

    async def _sleep(self, live: LiveConnection, heartbeat_s: float) -> None:
        """Sleep until a heartbeat or a renewal is due, or the connection has ended."""
        due_s = min(live.renew_at_s.values(), default=math.inf) - self._clock.boottime_s()
        wait_s = max(min(heartbeat_s, due_s, _MAX_CHECK_INTERVAL_S), 0.01)
        try:
            await self._clock.bounded(asyncio.shield(live.connection.ended), seconds=wait_s)
        except TimeoutError:
            return

    async def _renew(self, live: LiveConnection, now_s: float) -> None:
        for audience, due_s in list(live.renew_at_s.items()):
            if now_s < due_s or live.connection.ended.done():
                continue
            try:
                await self._clock.bounded(self._put_token(live, audience), seconds=ANSWER_TIMEOUT_S)
            except (ServiceRefused, StoreUnavailable, TimeoutError, AmqpFault) as error:
                # The old token is still valid for a while; the hub ends the links when it expires.
                live.renew_at_s[audience] = now_s + _MIN_TOKEN_LIFE_S
                log.warning("%s: its token can not be renewed: %s", self._address, error)


def _reason(cause: Exception) -> str:
    """Return the text of the system, without the number and address that Python adds."""
    if isinstance(cause, socket.gaierror):
        return cause.strerror or "the name of the host is not known"
    number = cause.errno if isinstance(cause, OSError) else None
    is_system_error = number is not None and number > 0 and not isinstance(cause, ssl.SSLError)
    system_text = os.strerror(number) if number is not None and is_system_error else ""
    default = "the server hung up" if isinstance(cause, ConnectionError) else "no answer in time"
    return system_text or str(cause) or default


def _ssl_context(address: HubAddress) -> ssl.SSLContext | None:
    """Return the TLS context; None for a plain connection."""
    if not address.tls:
        return None
    try:
        return ssl.create_default_context(cafile=address.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"?ca={address.ca} can not be used: {error}; name a file with certificates in PEM"
        ) from error
