"""Processors on an event hub: shared partitions, orderly moves, and stolen ones."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.eventhubs import address_of, in_loop, source_of
from tests.support.hub import RunningHub, running_hub, until
from tests.support.processors import HostGroup, host_group

from leasehold.azure import EventHubsSource
from leasehold.clock import SystemClock
from leasehold.errors import BeyondEnd, StoreUnusable, Trimmed
from leasehold.events import Start
from leasehold.events.source_urls import open_ranges
from leasehold.processor.events import PartitionOpened, ReceiverDisplaced
from leasehold.spark.reading import Range, close_stream, read_events

EXAMPLE = Path(__file__).parents[3] / "examples" / "eventhubs_processor.py"


async def filled(hub: RunningHub, count: int, *, partitions: int = 4) -> None:
    for number in range(partitions):
        bodies = [b"%d" % each for each in range(count)]
        await asyncio.to_thread(partial(hub.store, *bodies, partition=number))


async def opened(made: HostGroup, count: int) -> None:
    await made.watch.until(lambda: len(made.watch.of(PartitionOpened)) >= count)


@pytest.mark.spec("C5")
def test_a_second_host_takes_its_share_and_nothing_comes_twice(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=4) as hub:

        async def test() -> None:
            store = f"sqlite:///{tmp_path}/leases.db"
            async with (
                source_of(hub) as one,
                source_of(hub) as two,
                host_group(source=one, store=store) as made,  # type: ignore[arg-type]
            ):
                await filled(hub, 50)
                await made.host("a", source=one)
                await made.seen.count(200)
                await made.host("b", source=two)
                await opened(made, 4 + 2)
                await filled(hub, 50)
                await made.seen.count(400)
                assert made.seen.twice() == []
                assert {each.host for each in made.seen.all[200:]} == {"a", "b"}
                for number in range(4):
                    assert made.seen.numbers(str(number)) == list(range(100))
                assert made.watch.of(ReceiverDisplaced) == []

        in_loop(test)


def test_a_host_whose_partition_is_read_with_a_higher_epoch_is_displaced(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=1) as hub:

        async def test() -> None:
            async with (
                source_of(hub) as one,
                source_of(hub) as two,
                host_group(source=one) as made,  # type: ignore[arg-type]
            ):
                await filled(hub, 10, partitions=1)
                await made.host("a", source=one)
                await made.seen.count(10)
                thief = await two.receiver(
                    "0", group="billing", epoch=1000, start=Start.earliest(), name="thief"
                )
                await made.watch.sees(ReceiverDisplaced)
                await filled(hub, 5, partitions=1)
                assert (await thief.receive(max_events=99, max_bytes=1 << 20)).first_sequence == 0
                await thief.close()  # the owner by the leases comes back
                await made.seen.count(15)
                assert made.seen.numbers() == list(range(15))

        in_loop(test)


def commands(store: str) -> dict[str, list[str]]:
    """Two ways to start a host on a hub."""
    of_ours = str(Path(sys.executable).with_name("leasehold"))
    words = ["--batch", "--group", "billing", "--source", "eventhubs:///hub", "--store", store]
    return {
        "example": [sys.executable, str(EXAMPLE), "eventhubs:///hub", store],
        "command": [of_ours, "process", "events_of_a_hub:handle", *words],
    }


@pytest.mark.process
@pytest.mark.parametrize("way", ["example", "command"])
def test_a_process_reads_a_hub_by_its_address_and_leaves_in_good_order(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "events_of_a_hub.py").write_text(
        "def handle(context, batch):\n"
        "    print(f'{context.partition}: {len(batch)} events', flush=True)\n"
    )
    with running_hub(tmp_path, partitions=1) as hub:
        hub.store(*[b"x"] * 7)
        with subprocess.Popen(
            commands(f"sqlite:///{tmp_path}/leases.db")[way],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "EVENTHUB_CONNECTION_STRING": hub.url()},
        ) as process:
            try:
                assert process.stdout is not None
                assert any(line.startswith("0: 7 events") for line in process.stdout)
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=90)
            finally:
                process.kill()
        assert process.returncode == 0
        assert "Traceback" not in told
        assert "Warning" not in told
        until(lambda: not hub.server.connections)


@pytest.mark.process
def test_the_example_says_how_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "eventhubs:///hub"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("usage: ")
    assert len(done.stderr.splitlines()) == 1


def test_ranges_of_a_hub_are_read_for_spark_without_a_store(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=2) as hub:
        hub.store(*[b"%d" % number for number in range(500)], partition=1)
        address = address_of(hub)
        ranges = open_ranges(address, store_url="", pinned=True)
        try:
            assert (ranges.name, ranges.partitions()) == ("hub", ("0", "1"))
            assert ranges.ends(["1"])["1"].next == 500
            assert ranges.find("1", Start.latest()) == 500
            assert ranges.find("1", Start.offset(hub.events(1)[77].offset)) == 77
            found = [event for batch in ranges.read("1", 100, 350) for event in batch]
            assert [event.body for event in found] == [b"%d" % each for each in range(100, 350)]
            with pytest.raises(BeyondEnd):
                list(ranges.read("1", 400, 501))
            assert list(ranges.read("1", 5, 5)) == []
        finally:
            ranges.close()
        columns = ("partition", "sequence_number", "body")
        wanted = [Range(partition="1", start=0, end=250), Range(partition="1", start=250, end=500)]
        rows = sum(batch.num_rows for batch in read_events(address, "", wanted, columns))
        close_stream(address, "")
        assert rows == 500


def test_a_hub_that_was_recreated_has_another_identity(tmp_path: Path) -> None:
    """It comes with the list of partitions: asking for it later costs no request."""
    with running_hub(tmp_path, partitions=1) as hub:

        async def identity() -> str:
            async with EventHubsSource(address_of(hub)) as source:
                await source.partitions()
                await source.close()  # it cannot ask any more
                return await source.stream_identity()

        first = anyio.run(identity)
        ranges = open_ranges(address_of(hub), store_url="", pinned=True)
        assert ranges.identity == first == anyio.run(identity)
        ranges.close()
        hub.log.delete("hub")
        hub.log.create("hub", partitions=1)
        second = anyio.run(identity)
        assert second
        assert second != first


def test_the_name_of_a_key_is_in_no_error_of_a_task_of_spark(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=1) as hub:
        address = address_of(hub)
        with pytest.raises((BeyondEnd, Trimmed)) as told:
            list(read_events(address, "", [Range(partition="0", start=0, end=9)], ("body",)))
        close_stream(address, "")
        assert "SharedAccess" not in str(told.value)
        assert "eventhubs://" in str(told.value)


def certificate(place: Path) -> tuple[Path, ssl.SSLContext]:
    """The file to trust, and what a server needs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub of a test")])
    now = SystemClock().utc_now()
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    public, secret = place / "ca.pem", place / "both.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    secret.write_bytes(private + public.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secret)
    return public, context


def test_a_hub_with_tls_is_read_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path)
    with running_hub(tmp_path, partitions=1, tls=context) as hub:
        hub.store(b"secret")

        async def test() -> None:
            how: Any = {"group": "g", "epoch": 1, "start": Start.earliest(), "name": "a"}
            async with EventHubsSource(address_of(hub, ca=trusted)) as source:
                receiver = await source.receiver("0", **how)
                batch = await receiver.receive(max_events=9, max_bytes=1 << 20)
                assert next(iter(batch)).body == b"secret"
            async with EventHubsSource(address_of(hub)) as source:
                with pytest.raises(StoreUnusable, match="not to be trusted"):
                    await source.partitions()

        in_loop(test)
