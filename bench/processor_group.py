"""Hosts that come and go under load: events seen twice, and partitions that nobody has."""

from __future__ import annotations

import random
from statistics import median
from typing import TYPE_CHECKING

from bench.processor_scene import Host, Hosts, Load, Scene, scene, until
from bench.report import Row, at_most, cost, exactly

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

_LOAD_ROWS = 20
_LOAD_EVERY_S = 0.01


def rolling(*, hosts: int, partitions: int, lease_s: float) -> Sequence[Row]:
    """Each host ends in good order and another one comes, one after the other."""
    what = f"rolling restart of {hosts} hosts under load"
    in_order = _handled_in_a_roll("even", hosts, partitions, lease_s)
    stolen = _handled_in_a_roll("one_steal", hosts, partitions, lease_s)
    none = exactly(0)
    return [
        cost(f"{what}, {in_order.total:,} events: seen twice", in_order.twice, bar=none),
        cost("the same: events lost", in_order.lost, bar=none),
        cost(f"the same, stealing by force, {stolen.total:,} events: seen twice", stolen.twice),
        cost("the same: events lost", stolen.lost, bar=none),
    ]


class _Sum:
    """What became of all events that were sent."""

    def __init__(self, handled: Counter[tuple[int, int]], sent: int) -> None:
        self.total = sent
        self.twice = handled.total() - len(handled)
        self.lost = sent - len(handled)


def _handled_in_a_roll(strategy: str, count: int, partitions: int, lease_s: float) -> _Sum:
    with (
        scene(partitions=partitions) as made,
        Hosts(scene=made, lease_s=lease_s, strategy=strategy) as hosts,
    ):
        living = [hosts.start() for _ in range(count)]
        _until_shared(living, partitions)
        with Load(made, rows=_LOAD_ROWS, every_s=_LOAD_EVERY_S):
            for _ in range(count):
                living.pop(0).end()
                living.append(hosts.start())
                _until_shared(living, partitions)
        _until_all_handled(hosts, made)
        for host in living:
            host.end()
        return _Sum(hosts.handled(), made.sent())


def killed(*, hosts: int, partitions: int, lease_s: float, kills: int) -> Sequence[Row]:
    """From the kill to the moment at which another host has opened the partition."""
    gaps: list[float] = []
    rng = random.Random(kills)
    with scene(partitions=partitions) as made, Hosts(scene=made, lease_s=lease_s) as all_hosts:
        living = [all_hosts.start() for _ in range(hosts)]
        with Load(made, rows=_LOAD_ROWS, every_s=_LOAD_EVERY_S):
            for _ in range(kills):
                _until_shared(living, partitions)
                victim = living.pop(rng.randrange(hosts))
                gaps += _gaps(victim, living)
                living.append(all_hosts.start())
            _until_shared(living, partitions)
        _until_all_handled(all_hosts, made)
        sums = _Sum(all_hosts.handled(), made.sent())
        for host in living:
            host.end()
    what = f"without an owner after kill -9, {kills} kills, lease {lease_s:g} s: leases"
    return [
        cost(f"{what}, the longest", max(gaps) / lease_s, bar=at_most(1.3)),
        cost("the same, median", median(gaps) / lease_s),
        cost(f"the same, {sums.total:,} events: seen twice", sums.twice),
        cost("the same: events lost", sums.lost, bar=exactly(0)),
    ]


def _gaps(victim: Host, others: Sequence[Host]) -> list[float]:
    lost = victim.notes.held()
    before = {other.notes: len(other.notes.opened()) for other in others}
    killed_at = victim.kill()
    lost = lost & victim.notes.held()

    def taken() -> dict[int, float]:
        found: dict[int, float] = {}
        for other in others:
            for (partition, _), at in list(other.notes.opened().items())[before[other.notes] :]:
                if partition in lost and at > killed_at:
                    found.setdefault(partition, at)
        return found

    until(lambda: len(taken()) == len(lost), what="the partitions of the dead are taken")
    return [at - killed_at for at in taken().values()]


def _until_shared(living: Sequence[Host], partitions: int) -> None:
    """Until each has as many as it should, by what they say themselves."""

    def is_shared() -> bool:
        held = [host.notes.held() for host in living]
        counts = [len(each) for each in held]
        return (
            len(set().union(*held)) == sum(counts) == partitions and max(counts) - min(counts) <= 1
        )

    until(is_shared, what="the partitions are shared out")


def _until_all_handled(hosts: Hosts, made: Scene) -> None:
    sent = made.sent()
    until(lambda: len(hosts.handled()) >= sent, what="all events are handled")
