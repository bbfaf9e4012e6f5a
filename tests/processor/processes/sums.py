"""What must be true of any run, whichever process was killed or paused: checked line by line."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.processor.processes.hosts import Delivered, HostProcesses


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The result of ``balance``."""

    events: int
    delivered: int
    twice: int


def balance(host_processes: HostProcesses, *, complete: bool = True) -> Sums:
    """Check the deliveries of all hosts against the log and against the checkpoints.

    With ``complete``: every event of the log was delivered, with its value, and is stored as done.
    """
    logged, notes = host_processes.logged(), host_processes.delivered()
    seen = {(each.partition, each.number): each.value for each in notes}
    assert seen.items() <= logged.items(), "something was delivered that is not in the log"
    if complete:
        assert logged.keys() - seen.keys() == set(), "these were never delivered"
        assert sum(seen.values()) == sum(logged.values())
        ends = {str(part.number): part.next_sequence - 1 for part in host_processes.info().parts}
        found = {
            p: each.position.sequence_number for p, each in host_processes.checkpoints().items()
        }
        assert found == {p: end for p, end in ends.items() if end >= 0}
    terms: dict[str, dict[int, list[Delivered]]] = defaultdict(lambda: defaultdict(list))
    for each in notes:
        terms[each.partition][each.epoch].append(each)
    for partition, by_epoch in terms.items():
        _in_order(partition, by_epoch)
        _no_checkpoint_skips(host_processes, partition, by_epoch)
    times = Counter((each.partition, each.number) for each in notes)
    twice = sum(count - 1 for count in times.values())
    return Sums(events=len(logged), delivered=len(notes), twice=twice)


def _in_order(partition: str, by_epoch: dict[int, list[Delivered]]) -> None:
    """One host for each epoch, one event after the other, and none left out between epochs."""
    furthest = -1
    for epoch in sorted(by_epoch):
        term = by_epoch[epoch]
        numbers = [each.number for each in term]
        where = f"partition {partition}, epoch {epoch}"
        assert len({each.host for each in term}) == 1, where
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), where
        assert numbers[0] <= furthest + 1, f"{where}: {furthest + 1} to {numbers[0]} left out"
        furthest = max(furthest, numbers[-1])


def _no_checkpoint_skips(
    host_processes: HostProcesses, partition: str, by_epoch: dict[int, list[Delivered]]
) -> None:
    """Nothing that was stored as done is new to the group, comes again, or moves back."""
    stored = host_processes.said("stored", partition=partition)
    stored.sort(key=lambda each: (each["epoch"], each["number"]))
    furthest = -1
    for each in stored:
        epoch, number = each["epoch"], each["number"]
        where = f"partition {partition}: {number} stored in epoch {epoch}"
        assert number >= furthest, f"{where} after {furthest}"
        furthest = number
        # Each term is without gaps, and begins where those before it have been: see _in_order.
        terms = [term[-1].number for n, term in by_epoch.items() if n <= epoch]
        before = max(terms, default=-1)
        assert before >= number, f"{where}, and only {before} was delivered"
        after = [term[0].number for n, term in by_epoch.items() if n > epoch]
        assert min(after, default=number + 1) > number, f"{where}, and delivered again"


def never_together(host_processes: HostProcesses) -> None:
    """No handler was given an event after one of a later epoch: owners follow each other."""
    latest: dict[str, int] = {}
    for each in host_processes.delivered():
        assert each.epoch >= latest.get(each.partition, 0), f"{each}: a zombie"
        latest[each.partition] = each.epoch
