"""A hub in a thread of the test, and a client that says exactly what a test wants it to say."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote_plus
from uuid import UUID

from leasehold.azure import HubOptions, HubServer, SasKeys
from leasehold.azure.amqp.composites import Composite, Source, Target
from leasehold.azure.amqp.frames import (
    AMQP_HEADER,
    HEADER,
    SASL,
    SASL_HEADER,
    Frame,
    FrameReader,
    frame,
)
from leasehold.azure.amqp.messages import Message, read_message
from leasehold.azure.amqp.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    parse,
)
from leasehold.azure.amqp.types import Described, Symbol
from leasehold.azure.amqp.values import encode
from leasehold.clock import SystemClock
from leasehold.events import Event
from leasehold.log import Log, LogOptions, Receipt

T = TypeVar("T")
C = TypeVar("C", bound=Composite)
KEY_NAME, KEY = "app", "a-key-for-tests"
_TIMEOUT_S = 90.0
_CLOCK = SystemClock()


@dataclass(frozen=True, kw_only=True)
class RunningHub:
    """A server with its log."""

    log: Log
    server: HubServer
    loop: asyncio.AbstractEventLoop = field(repr=False)

    @property
    def port(self) -> int:
        return self.server.address[1]

    def url(self, hub: str = "hub") -> str:
        return self.server.connection_string(hub)

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Do something in the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_TIMEOUT_S)

    def call(self, work: Callable[[], T]) -> T:
        async def called() -> T:
            return work()

        return self.run(called())

    def reset_all(self) -> int:
        """Hang up on everybody, as a broken network does; say how many there were."""

        def reset() -> int:
            found = tuple(self.server._connections)
            for each in found:
                each.abort()
            return len(found)

        return self.call(reset)

    def pass_time(self, seconds: float) -> None:
        """Let the server look at its connections as it would after so long."""
        server = self.server

        def look() -> None:
            now, wall = server.clock.boottime_s(), server.clock.utc_now()
            later = wall + timedelta(seconds=seconds)
            server._for_each(lambda connection: connection.tick(now + seconds, later))

        self.call(look)

    def store(self, *bodies: bytes, partition: int = 0, hub: str = "hub") -> Receipt:
        """Put events into the log, past the hub."""
        with self.log.producer(hub) as producer:
            sent = producer.send([Event(body=body) for body in bodies], partition=partition)
            return sent.result(_TIMEOUT_S)[0]

    def bodies(self, partition: int = 0, hub: str = "hub") -> list[bytes]:
        return [event.body for event in self.events(partition, hub)]

    def events(self, partition: int = 0, hub: str = "hub") -> list[Event]:
        with self.log.reader(hub, partition) as reader:
            return [event for batch in reader.batches() for event in batch]


@contextmanager
def running_hub(directory: Path, *, partitions: int = 2, **options: Any) -> Iterator[RunningHub]:
    """A hub called ``hub``, listening at a free port."""
    url = f"sqlite:///{directory / 'hub.db'}"
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="hub-of-test")
    with Log.open(url, volumes=[directory / "v"], options=LogOptions(run_monitor=False)) as log:
        log.create("hub", partitions=partitions)
        given = {"port": 0, "keys": SasKeys.parse([f"{KEY_NAME}={KEY}"]), **options}
        thread.start()
        try:

            async def made() -> HubServer:
                server = HubServer(log, HubOptions(**given))
                await server.start()
                return server

            server = asyncio.run_coroutine_threadsafe(made(), loop).result(_TIMEOUT_S)
            running = RunningHub(log=log, server=server, loop=loop)
            try:
                yield running
            finally:
                running.run(server.close())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def until(condition: Callable[[], object], *, timeout_s: float = _TIMEOUT_S) -> None:
    """Wait until something holds; fail if it takes too long."""
    over_at = _CLOCK.boottime_s() + timeout_s
    pause = threading.Event()
    while not condition():
        assert _CLOCK.boottime_s() < over_at, "it took too long"
        pause.wait(0.01)


def sas(
    resource: str = "sb://127.0.0.1/hub",
    *,
    name: str = KEY_NAME,
    key: str = KEY,
    lasts: timedelta = timedelta(hours=1),
) -> str:
    """A token as clients sign it."""
    expiry = int((_CLOCK.utc_now() + lasts).timestamp())
    quoted = quote_plus(resource)
    signed = hmac.digest(key.encode(), f"{quoted}\n{expiry}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(signed))
    return f"SharedAccessSignature sr={quoted}&sig={signature}&se={expiry}&skn={name}"


def certificate(directory: Path, address: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hub")])
    now = _CLOCK.utc_now()
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


def tls_of(directory: Path, address: str = "127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    """What a hub at this address encrypts with, and the certificate that its clients trust."""
    cert, key = certificate(directory, address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


def hello(trusting: ssl.SSLContext) -> bytes:
    """The first bytes of a client that uses TLS."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


class RawClient:
    """A connection, frame by frame. ``wait`` passes over frames of other kinds."""

    def __init__(
        self,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        source: str = "",
    ) -> None:
        origin = (source, 0) if source else None
        self._socket = socket.create_connection((host, port), _TIMEOUT_S, source_address=origin)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._reader = FrameReader(1 << 24)
        self._frames: list[Frame] = []
        self._numbers = 0
        self._delivery = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(
        self, what: Composite, payload: bytes = b"", *, channel: int = 0, kind: int = 0
    ) -> None:
        self.raw(frame(channel, what.encode() + payload, kind))

    def next(self) -> Frame | None:
        """The next frame; None when the server has hung up."""
        while not self._frames:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def wait(self, kind: type[C]) -> tuple[C, bytes]:
        """The next performative of this kind, and its payload."""
        while (found := self.next()) is not None:
            if found.kind != HEADER and len(found.body):
                what, at = parse(found.body)
                if isinstance(what, kind):
                    return what, bytes(found.body[at:])
        raise EOFError(f"the server has hung up before {kind.__name__}")

    def is_closed(self) -> bool:
        """Read until the server hangs up."""
        while self.next() is not None:
            pass
        return True

    # ------------------------------------------------------------- in good order

    def sign_in(self, mechanism: str = "ANONYMOUS", response: bytes | None = None) -> int:
        self.raw(SASL_HEADER)
        self.wait(SaslMechanisms)
        self.send(SaslInit(mechanism=mechanism, initial_response=response), kind=SASL)
        return self.wait(SaslOutcome)[0].code

    def open(self, **fields: Any) -> Self:
        """As far as a session."""
        assert self.sign_in() == 0
        return self.continue_open(**fields)

    def continue_open(self, **fields: Any) -> Self:
        """From the end of SASL to a session."""
        self.raw(AMQP_HEADER)
        self.send(Open(container_id="raw", **fields))
        self.wait(Open)
        self.send(Begin(next_outgoing_id=0, incoming_window=5000, outgoing_window=5000))
        self.wait(Begin)
        return self

    def attach(self, address: str, *, receives: bool, name: str = "", **fields: Any) -> Attach:
        """Attach a link, and return the server's answer; its handle is the next one."""
        source = fields.pop("source", None) or Source(address=address if receives else "here")
        self.send(
            Attach(
                name=name or f"link-{self._numbers}",
                handle=self._numbers,
                role=receives,
                source=source,
                target=Target(address="here" if receives else address),
                initial_delivery_count=None if receives else 0,
                **fields,
            )
        )
        self._numbers += 1
        return self.wait(Attach)[0]

    def node(self, address: str) -> None:
        """Both links to a node, with credit for its answers."""
        answers = self.attach(address, receives=True)
        self.credit(answers.handle, 100)
        self.attach(address, receives=False)

    def credit(self, handle: int, count: int, *, seen: int = 0, **fields: Any) -> None:
        self.send(
            Flow(
                next_incoming_id=1,
                incoming_window=1 << 20,
                next_outgoing_id=0,
                outgoing_window=5000,
                handle=handle,
                delivery_count=seen,
                link_credit=count,
                **fields,
            )
        )

    def transfer(self, handle: int, message: bytes, *, message_format: int = 0) -> int:
        """One delivery in one frame; its id."""
        number, self._delivery = self._delivery, self._delivery + 1
        head = Transfer(
            handle=handle,
            delivery_id=number,
            delivery_tag=number.to_bytes(4, "big"),
            message_format=message_format,
        )
        self.send(head, message)
        return number

    def ask(self, handle: int, message: Message) -> Message:
        """A request on the link of a node, and its answer."""
        self.transfer(handle, message.encode())
        return read_message(self.wait(Transfer)[1])

    def put_token(self, token: str | None = None, audience: str = "sb://127.0.0.1/hub") -> Message:
        """Bring a token; the links are made at the first time."""
        if not self._numbers:
            self.node("$cbs")
        asked = {"operation": "put-token", "type": "servicebus.windows.net:sastoken"}
        return self.ask(
            1,
            Message(
                properties=(UUID(int=1),),
                application_properties={**asked, "name": audience},
                value=sas() if token is None else token,
            ),
        )

    def reader(
        self, address: str = "hub/ConsumerGroups/$Default/Partitions/0", at: str = "", **fields: Any
    ) -> Attach:
        """Attach a receiver that begins where the filter says."""
        chosen = Symbol("apache.org:selector-filter:string")
        filters = {chosen: Described(chosen, f"amqp.annotation.{at}")} if at else None
        source = Source(address=address, filter=filters)
        return self.attach(address, receives=True, source=source, **fields)


def stuffed(what: Composite, count: int, value: bytes = b"\x45") -> bytes:
    """A performative whose last field, a map that is not there, holds a list of so many values.

    One of a byte is the empty list, which takes 56 bytes of memory.
    """
    plain = what.encode()
    start, fields = (6, plain[5]) if plain[3] == 0xC0 else (12, plain[11])
    assert plain[-1] == 0x40
    values = _wide(0xD0, count, value * count)
    data = plain[start:-1] + _wide(0xD1, 2, encode(Symbol("a")) + values)
    return plain[:3] + _wide(0xD0, fields, data)


def _wide(code: int, count: int, data: bytes) -> bytes:
    return bytes((code,)) + (len(data) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + data
