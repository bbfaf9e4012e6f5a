"""Drivers hurt at the worst moments: between staging and commit, inside the fence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.drivers import crew

PARTITIONS = 2
LEASE_S = 6.0


@pytest.mark.soak
@pytest.mark.spec("S4", "B5")
def test_a_driver_paused_or_killed_between_two_steps_of_a_commit_costs_no_row(
    tmp_path: Path,
) -> None:
    with crew(tmp_path, partitions=PARTITIONS) as group:
        group.fill(300, partitions=PARTITIONS)
        names = ("first", "second", "third", "last")
        first, second, third, last = (
            group.begin(name, lease_s=LEASE_S, batch_events=PARTITIONS * 50, go=False)
            for name in names
        )
        # 1. The first is paused when its rows are staged, its lease was looked at, and nothing
        #    but the commit itself is left. The second takes over, and is killed in its fence.
        first.says("up")
        first.tell("hold", at=["committing"])
        first.tell("go")
        held = first.says("committing", held=True)
        first.pause()
        second.says("up")
        second.tell("hold", at=["fenced"])
        second.tell("go")
        second.says("fenced", held=True)
        second.kill()
        # 2. The first wakes up. The dead one has raised the epoch, so the table refuses the commit.
        #    A busy machine may have cost it the lease before; that refusal was of another batch.
        first.go_on()
        first.tell("release")
        refused = first.says("refused", number=held["number"])
        assert refused["by_sink"], refused
        # 3. It gets the partitions back, and is killed with staged rows, before the commit.
        first.tell("hold", at=["staged"])
        first.says("staged", held=True)
        first.kill()
        # 4. The third is killed when the table has its batch, and nobody knows that yet.
        third.says("up")
        third.tell("hold", at=["sunk"])
        third.tell("go")
        number = third.says("sunk", held=True)["number"]
        third.kill()
        # 5. Who comes next goes on from where the table says.
        last.says("up")
        last.tell("go")
        group.all_committed()
        assert not group.faults()
        (batch,) = third.of("staged", number=number)
        for partition, _, end in batch["ranges"]:
            (opened,) = last.of("opened", partition=partition)
            assert (opened["by"], opened["position"]) == ("sink", end)
