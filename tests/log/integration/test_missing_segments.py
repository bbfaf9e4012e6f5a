"""A stream on several volumes: segments whose copies were lost are copied again, and read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leasehold.events import Event
from leasehold.log import Log, LogOptions

SOON_S = 120


def _bodies(log: Log) -> list[bytes]:
    with log.reader("orders", 0) as reader:
        return [event.body for batch in reader.batches() for event in batch]


@pytest.mark.spec("F9")
def test_a_stream_that_lost_each_of_its_volumes_in_turn_has_all_events(tmp_path: Path) -> None:
    url, roots = f"sqlite:///{tmp_path}/log.db", [tmp_path / "a", tmp_path / "b"]
    sent = [b"%05d" % number for number in range(400)]
    with Log.open(url, volumes=roots, options=LogOptions(run_monitor=False)) as log:
        log.create("orders", partitions=1, segment_bytes=65536)
        with log.producer("orders") as producer:
            for body in sent:
                producer.send(Event(body=body, properties={"x": "y" * 500})).result(SOON_S)
    with (  # a reader that is open before the losses
        Log.open(url, options=LogOptions(run_monitor=False)) as log,
        log.reader("orders", 0) as early,
    ):
        assert len(log.files.list("/")) > 1
        for lost in roots:
            shutil.rmtree(lost / "blocks")
            for missing in log.files.missing_copies():
                log.files.repair(missing)
        assert list(log.files.missing_copies(compare=True)) == []
        assert _bodies(log) == sent
        assert [event.body for batch in early.batches() for event in batch] == sent
        assert log.verify("orders") == []
