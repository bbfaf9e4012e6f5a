"""What a hub does when the stream behind it is another one, or a part of it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.hub import RawClient, RunningHub, running_hub

from leasehold.azure.amqp.composites import Accepted, Rejected
from leasehold.azure.amqp.messages import Message
from leasehold.azure.amqp.performatives import Detach, Disposition, Flow, Transfer
from leasehold.azure.endpoint.selectors import Selector
from leasehold.errors import UnknownStream


def made_anew(hub: RunningHub) -> None:
    hub.log.delete("hub")
    hub.log.create("hub", partitions=2)


def test_a_sender_learns_that_another_client_has_found_the_stream_made_anew(tmp_path: Path) -> None:
    message = Message(data=(b"x",)).encode()
    with (
        running_hub(tmp_path) as hub,
        RawClient(hub.port) as one,
        RawClient(hub.port) as two,
    ):
        for client in (one, two):
            client.open().put_token()
        sender = one.attach("hub/Partitions/0", receives=False)
        one.transfer(sender.handle, message)
        assert isinstance(one.wait(Disposition)[0].state, Accepted)
        made_anew(hub)
        two.attach("hub/Partitions/0", receives=False)
        two.wait(Flow)
        one.transfer(sender.handle, message)
        state = one.wait(Disposition)[0].state
        assert isinstance(state, Rejected)
        for error in (state.error, one.wait(Detach)[0].error):
            assert error is not None
            assert error.condition == "amqp:not-found"
        again = one.attach("hub/Partitions/0", receives=False)
        one.transfer(again.handle, message)
        assert isinstance(one.wait(Disposition)[0].state, Accepted)
        assert hub.bodies() == [b"x"]


def test_a_reader_learns_that_another_client_has_found_the_stream_made_anew(tmp_path: Path) -> None:
    with (
        running_hub(tmp_path) as hub,
        RawClient(hub.port) as one,
        RawClient(hub.port) as two,
    ):
        for client in (one, two):
            client.open().put_token()
        hub.store(b"old")
        one.credit(one.reader().handle, 5)
        one.wait(Transfer)
        made_anew(hub)
        two.attach("hub/Partitions/0", receives=False)
        error = one.wait(Detach)[0].error
        assert error is not None
        assert error.condition == "amqp:not-found"


def test_a_hub_that_is_another_one_by_now_says_so(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        old = hub.run(hub.server.hubs.find("hub"))
        made_anew(hub)
        assert hub.run(hub.server.hubs.find("hub")) is not old
        with pytest.raises(UnknownStream):
            hub.run(old.receiver(0, Selector(what="earliest")))


def test_a_damaged_frame_does_not_hide_the_sound_ones_before_it(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=1) as hub, RawClient(hub.port) as client:
        for number in range(3):
            hub.store(b"A%d" % number * 2000)
        _damage(tmp_path / "v", b"A2A2A2")
        client.open().put_token()
        client.credit(client.reader().handle, 100)
        for _ in range(2):
            client.wait(Transfer)
        assert client.wait(Detach)[0].error is not None


def _damage(volume: Path, where: bytes) -> None:
    for path in volume.rglob("*"):
        at = path.read_bytes().find(where) if path.is_file() else -1
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"ZZZZ")
            return
    raise AssertionError("there is no such event")
