"""A failed sync under the log: what is acknowledged after it, also as a duplicate, is durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.events import Event
from leasehold.files.disk import SystemDisk
from leasehold.log import Log
from leasehold.testing.disk import FailedSyncDisk

SOON_S = 120


@pytest.mark.spec("F8")
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_batch_whose_first_sync_failed_is_durable_when_it_is_acknowledged(
    tmp_path: Path, failures: int
) -> None:
    url, volume = f"sqlite:///{tmp_path}/log.db", tmp_path / "a"
    disk = FailedSyncDisk(SystemDisk())
    with Log.open(url, volumes=[volume], disk=disk) as log:
        log.create("one", partitions=1)
        with log.producer("one") as producer:
            producer.send(Event(body=b"before")).result(SOON_S)
            disk.fail_syncs(volume, failures)
            producer.send(Event(body=b"acknowledged")).result(SOON_S)
            disk.remount()  # what is not on the disk is gone; what was mapped stays mapped
            with Log.open(url) as other, other.reader("one", 0) as reader:
                found = [event.body for batch in reader.batches() for event in batch]
    assert found == [b"before", b"acknowledged"]
