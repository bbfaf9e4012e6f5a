"""More partitions than descriptors: writing and reading work, and no replica is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOON_S = 300
MANY = """
import os, resource, sys
from leasehold.cli.fast_start import leave_pandas_out
leave_pandas_out()
from leasehold.events import Event
from leasehold.log import Log, ProducerOptions
from leasehold.log.streams import segments

root, partitions, limit, durable = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with Log.open(f"sqlite:///{root}/log.db", volumes=[f"{root}/a", f"{root}/b"]) as log:
    log.create("many", partitions=partitions)
    with log.producer("many", ProducerOptions(durable=bool(durable))) as producer:
        for turn in range(2):
            sent = [producer.send(Event(body=b"%d" % turn), partition=n) for n in range(partitions)]
            for future in sent:
                future.result()
    readers = [log.reader("many", number) for number in range(partitions)]
    for reader in readers:
        assert [event.body for batch in reader.batches() for event in batch] == [b"0", b"1"]
    open_files = len(os.listdir("/proc/self/fd"))
    for reader in readers:
        reader.close()
    counts = log.counts()
    assert (counts.taken, counts.recovered, counts.fenced) == (partitions, 0, 0), counts
with Log.open(f"sqlite:///{root}/log.db") as log:
    for number in range(partitions):
        for each in segments(log.files, "many", number):
            for block in log.files.read(each.path).blocks:
                assert len(block.volumes) == 2
    assert not log.verify("many")
print(open_files)
"""


@pytest.mark.process
@pytest.mark.parametrize("durable", [True, False])
def test_more_partitions_than_descriptors_are_written_and_read(
    tmp_path: Path, durable: bool
) -> None:
    arguments = [str(tmp_path), "40", "100", str(int(durable))]  # 160 files are written
    done = subprocess.run(
        [sys.executable, "-c", MANY, *arguments], capture_output=True, timeout=SOON_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) <= 100
