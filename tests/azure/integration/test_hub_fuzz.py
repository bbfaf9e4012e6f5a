"""Any bytes at all, at any moment: the hub goes on, and takes no more memory than it should."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.hub import RawClient, RunningHub, running_hub, stuffed, until

from leasehold.azure.amqp.composites import Accepted, Composite, Source, Target
from leasehold.azure.amqp.frames import AMQP_HEADER, SASL_HEADER, frame
from leasehold.azure.amqp.messages import Message, read_message
from leasehold.azure.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
    parse,
)

_SETTINGS = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_NUMBERS = st.sampled_from([0, 1, 2, 3, 7, 2**31, 2**32 - 1])
_ADDRESSES = st.sampled_from(
    ["hub", "$cbs", "$management", "hub/ConsumerGroups/g/Partitions/0", "hub/Partitions/1", "", "/"]
)
_PERFORMATIVES: st.SearchStrategy[Composite] = st.one_of(
    st.builds(Begin, next_outgoing_id=_NUMBERS, incoming_window=_NUMBERS, outgoing_window=_NUMBERS),
    st.builds(
        Attach,
        name=st.text(max_size=3),
        handle=_NUMBERS,
        role=st.booleans(),
        source=st.none() | st.builds(Source, address=_ADDRESSES),
        target=st.none() | st.builds(Target, address=_ADDRESSES),
    ),
    st.builds(
        Flow,
        incoming_window=_NUMBERS,
        next_outgoing_id=_NUMBERS,
        outgoing_window=_NUMBERS,
        handle=st.none() | _NUMBERS,
        delivery_count=st.none() | _NUMBERS,
        link_credit=st.none() | _NUMBERS,
        drain=st.booleans(),
        echo=st.booleans(),
    ),
    st.builds(
        Transfer,
        handle=_NUMBERS,
        delivery_id=st.none() | _NUMBERS,
        message_format=st.none() | st.sampled_from([0, 0x80013700, 5]),
        more=st.booleans(),
        aborted=st.booleans(),
        settled=st.none() | st.booleans(),
    ),
    st.builds(Disposition, role=st.booleans(), first=_NUMBERS, state=st.just(Accepted())),
    st.builds(Detach, handle=_NUMBERS),
    st.builds(End),
    st.builds(
        Open, container_id=st.text(max_size=3), max_frame_size=_NUMBERS, channel_max=st.just(9)
    ),
)
_PAYLOADS = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.just(Message(data=(b"x",)).encode()),
    st.just(Message(data=(Message(data=(b"x",)).encode(),)).encode()),
    st.just(Message(properties=(None,), application_properties={"operation": 5}).encode()),
    st.just(Message(application_properties={"operation": "put-token"}, value="x").encode()),
)
_HOSTILE = st.builds(
    stuffed,
    st.one_of(
        st.builds(
            Attach,
            name=st.text(max_size=3),
            handle=st.integers(0, 5),
            role=st.booleans(),
            source=st.builds(Source, address=_ADDRESSES),
            target=st.builds(Target, address=_ADDRESSES),
        ),
        st.builds(
            Begin,
            next_outgoing_id=_NUMBERS,
            incoming_window=_NUMBERS,
            outgoing_window=_NUMBERS,
        ),
        st.builds(Open, container_id=st.text(max_size=3)),
    ),
    st.sampled_from([0, 1, 7, 400, 1001, 3000]),
    st.sampled_from([b"\x45", b"\x40", b"\xc0\x01\x00", b"\x00\x40\x40", b"\xc1\x01\x00"]),
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


def _still_serves(hub: RunningHub) -> None:
    with RawClient(hub.port) as client:
        assert client.open().put_token().application_properties["status-code"] == 202
        client.attach("hub", receives=False)
        client.wait(Flow)


@_SETTINGS
@given(
    st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([b"", SASL_HEADER, AMQP_HEADER])
)
def test_any_bytes_from_a_stranger(hub: RunningHub, parts: list[bytes], before: bytes) -> None:
    with RawClient(hub.port) as client:
        client.raw(before + b"".join(parts))
    until(lambda: not hub.server.connections)


@_SETTINGS
@given(
    st.lists(
        st.tuples(
            st.builds(Composite.encode, _PERFORMATIVES) | _HOSTILE, _PAYLOADS, st.integers(0, 1)
        ),
        max_size=12,
    )
)
def test_any_frames_from_a_stranger_get_nothing_but_errors(
    hub: RunningHub, frames: list[tuple[bytes, bytes, int]]
) -> None:
    answers: list[tuple[Composite, bytes]] = []
    with RawClient(hub.port) as client:
        client.open().node("$cbs")
        client.wait(Flow)
        try:
            client.raw(b"".join(frame(channel, each + load) for each, load, channel in frames))
            client.send(Close())
            while (found := client.next()) is not None:
                what, at = parse(found.body)
                answers.append((what, bytes(found.body[at:])))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has hung up at an earlier frame
    until(lambda: not hub.server.connections)
    for (what, payload), (then, _) in pairwise([*answers, (Close(), b"")]):
        match what:
            case Transfer():
                told = read_message(payload).application_properties
                assert told["status-code"] >= 400
            case Attach() if what.source != Source() or what.target != Target():
                assert "$cbs" in {_address(what.source), _address(what.target)}
            case Attach():
                assert isinstance(then, Close) or (isinstance(then, Detach) and then.error)
            case Disposition() | Flow() | Begin() | End() | Detach() | Close():
                pass
            case _:
                raise AssertionError(what)


def _address(end: Source | Target | None) -> object:
    return end.address if end is not None else None


@_SETTINGS
@given(st.lists(st.tuples(_PERFORMATIVES, _PAYLOADS, st.integers(0, 2)), max_size=12))
def test_any_frames_from_one_who_has_a_key(
    hub: RunningHub, frames: list[tuple[Composite, bytes, int]]
) -> None:
    with RawClient(hub.port) as client:
        client.open().put_token()
        try:
            client.raw(
                b"".join(frame(channel, each.encode() + load) for each, load, channel in frames)
            )
            client.send(Close())
            client.is_closed()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has hung up at an earlier frame
    until(lambda: not hub.server.connections)


def test_it_serves_after_all_that(hub: RunningHub) -> None:
    _still_serves(hub)
    until(lambda: not hub.server.connections)
    until(lambda: not hub.server._held_bytes)
    assert not hub.server.epochs._readers
    assert not hub.server._tasks
