"""Fault-free measured runs: how soon a group is balanced again, and at what cost.

Each scenario is a series of *steps*. A step is one change of membership and the wait until the
group is balanced. The cycles are counted from the time the membership is settled (the new host has
joined; the lease of the crashed one has ended), and the moves are compared with the fewest
possible.

A run can be drawn: ownership over time as sparklines for the terminal, and as SVG.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from colorsys import hls_to_rgb
from dataclasses import dataclass, replace
from enum import Enum
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from leasehold.core.balance import Snapshot, Strategy, min_moves, spread
from leasehold.model import MemberInfo
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.faults import FaultRates
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.world import Setting, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasehold.testing.sim.checks import Change
    from leasehold.testing.sim.host import Host

_STEP_S = 0.1
_MAX_CYCLES = 400
_STEADY_CYCLES = 10
_CHURN_STEPS = 10
_LAN = FaultRates(latency_s=0.005)


class Scenario(Enum):
    """The changes of membership in a run."""

    COLD = "cold"
    JOIN = "join"
    CRASH = "crash"
    ROLL = "roll"
    CHURN = "churn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The numbers of one run.

    ``cycles``: the maximum that any step took until it was balanced. ``moves``: keys that changed
    from one living owner to another. ``min_moves``: the fewest possible. ``spread``: largest minus
    smallest number of keys at the end. ``calls_per_host_cycle``: calls to the store in a quiet
    group. ``unowned_s``: seconds without a living owner, ``double_s``: with two at work, both
    summed over all keys.
    """

    scenario: str
    strategy: str
    hosts: int
    partitions: int
    cycles: int
    moves: int
    min_moves: int
    spread: int
    calls_per_host_cycle: float
    unowned_s: float
    double_s: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRun:
    """The numbers, and all changes of owner, for a chart."""

    measured: Measured
    keys: Sequence[str]
    hosts: Sequence[str]
    changes: Sequence[Change]
    began_s: float
    ended_s: float


@dataclass(slots=True)
class _Count:
    cycles: int = 0
    moves: int = 0
    min_moves: int = 0


def run_scenario(
    scenario: Scenario,
    *,
    hosts: int,
    partitions: int,
    strategy: Strategy = Strategy.EVEN,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> ScenarioRun:
    """Run one scenario in simulated time; ``tick`` is called after each step."""
    setting = Setting(
        seed=seed,
        partitions=partitions,
        strategy=strategy,
        rates=_LAN,
        writes=False,
    )
    return run_simulated(_ScenarioWorld(setting, hosts, tick).play(scenario))


class _ScenarioWorld:
    """A world with its counters."""

    def __init__(self, setting: Setting, hosts: int, tick: Callable[[], None]) -> None:
        self._setting = setting
        self._hosts = hosts
        self._tick = tick
        self._count = _Count()

    async def play(self, scenario: Scenario) -> ScenarioRun:
        world = self._world = World(self._setting)
        interval_s = self._setting.timing.renew_s
        for _ in range(self._hosts):
            world.start()
            if scenario is not Scenario.COLD:
                # Hosts that started together would stay in step; real ones do not.
                await world.pass_time(world.rng.uniform(0.0, 2 * interval_s / self._hosts))
        began_s = 0.0
        if scenario is not Scenario.COLD:
            await self._until(self._balanced)
            await world.pass_time(2 * interval_s)
            began_s = world.now_s()
        world.checks.double_s = 0.0
        await self._steps(scenario)
        ended_s = world.now_s()
        calls = await self._calls_when_steady()
        measured = Measured(
            scenario=scenario.value,
            strategy=self._setting.strategy.value,
            hosts=self._hosts,
            partitions=len(world.keys),
            cycles=self._count.cycles,
            moves=self._count.moves,
            min_moves=self._count.min_moves,
            spread=spread(world.snapshot()),
            calls_per_host_cycle=round(calls, 3),
            unowned_s=round(unowned_s(world.checks.changes, world.keys, began_s, ended_s), 1),
            double_s=round(world.checks.double_s, 1),
            seed=self._setting.seed,
        )
        await world.end()
        return ScenarioRun(
            measured=measured,
            keys=world.keys,
            hosts=[host.name for host in world.hosts],
            changes=world.checks.changes,
            began_s=began_s,
            ended_s=ended_s,
        )

    async def _steps(self, scenario: Scenario) -> None:
        if scenario is Scenario.COLD:
            await self._settle(replace(self._world.snapshot(), members={}), 0.0, 0)
        elif scenario is Scenario.JOIN:
            await self._join()
        elif scenario is Scenario.CRASH:
            await self._crash(self._world.rng.choice(self._world.running))
        elif scenario is Scenario.ROLL:
            for host in list(self._world.running):
                await self._join()
                await self._leave(host)
        else:
            for _ in range(_CHURN_STEPS):
                await self._churn()

    async def _churn(self) -> None:
        what = self._world.rng.choice(("join", "crash", "drain"))
        host = self._world.rng.choice(self._world.running)
        if what == "join" or len(self._world.running) == 1:
            await self._join()
        else:
            await (self._crash(host) if what == "crash" else self._leave(host))

    async def _join(self) -> None:
        world = self._world
        before, begun_s, begun = world.snapshot(), world.now_s(), len(world.checks.changes)
        world.start()
        await self._settle(joining(before), begun_s, begun)

    async def _leave(self, host: Host) -> None:
        world = self._world
        before, begun_s, begun = world.snapshot(), world.now_s(), len(world.checks.changes)
        world.drain(host)
        await self._settle(leaving(before, host), begun_s, begun, leaving_host=host)

    async def _crash(self, host: Host) -> None:
        """Crash a host; count the cycles from the time its lease has ended."""
        world = self._world
        before, begun = world.snapshot(), len(world.checks.changes)
        holder = host.member.holder if host.member else None
        world.crash(host)
        await self._until(lambda: holder not in world.snapshot().members)
        members = {each: info for each, info in before.members.items() if each != holder}
        await self._settle(replace(before, members=members), world.now_s(), begun)

    async def _settle(
        self, before: Snapshot, begun_s: float, begun: int, *, leaving_host: Host | None = None
    ) -> None:
        """Wait until the group is balanced, and count."""
        world = self._world
        await self._until(lambda: self._balanced(leaving_host))
        took_s = world.now_s() - begun_s
        cycles = math.ceil(took_s / self._setting.timing.renew_s)
        self._count.cycles = max(self._count.cycles, cycles)
        self._count.min_moves += min_moves(before)
        self._count.moves += moves_since(before, world.checks.changes[begun:])
        if leaving_host is not None:
            await self._until(lambda: not leaving_host.running)
        self._tick()

    def _balanced(self, leaving_host: Host | None = None) -> bool:
        """Return whether the living hosts, and no others, own all keys evenly."""
        snapshot = self._world.snapshot()
        members = {h.member.holder: h for h in self._world.running if h.member}
        if None in members or not set(members) >= set(snapshot.members):
            return False
        staying = [holder for holder, host in members.items() if host is not leaving_host]
        counts = Counter(resource.holder for resource in snapshot.resources.values())
        if set(counts) - set(staying):
            return False
        numbers = [counts[holder] for holder in staying]
        return max(numbers) - min(numbers) <= 1

    async def _until(self, condition: Callable[[], bool]) -> None:
        limit_s = self._world.now_s() + _MAX_CYCLES * self._setting.timing.renew_s
        while not condition():
            if self._world.now_s() > limit_s:
                raise InvariantBroken(f"not balanced after {_MAX_CYCLES} cycles")
            await self._world.pass_time(_STEP_S)

    async def _calls_when_steady(self) -> float:
        """Return the calls per host and cycle, over ten quiet cycles."""
        world = self._world
        await world.pass_time(2 * self._setting.timing.renew_s)
        before = self._calls()
        await world.pass_time(_STEADY_CYCLES * self._setting.timing.renew_s)
        since = self._calls() - before
        return since.total() / since["renew"]

    def _calls(self) -> Counter[str]:
        members = (host.member for host in self._world.running if host.member)
        return sum((member.calls for member in members), Counter())


def joining(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with one host more."""
    return replace(snapshot, members={**snapshot.members, "newcomer": MemberInfo()})


def leaving(snapshot: Snapshot, host: Host) -> Snapshot:
    """Return the snapshot with this host leaving."""
    holder = host.member.holder if host.member else None
    members = {
        each: replace(info, draining=info.draining or each == holder)
        for each, info in snapshot.members.items()
    }
    return replace(snapshot, members=members)


def moves_since(before: Snapshot, changes: Sequence[Change]) -> int:
    """Count new owners of keys that had a living one (or were being handed to it)."""
    owner = {key: before.owner_of(resource) for key, resource in before.resources.items()}
    moves = 0
    for change in changes:
        if change.holder is None:
            continue
        if owner[change.key] not in (None, change.holder):
            moves += 1
        owner[change.key] = change.holder
    return moves


def unowned_s(
    changes: Sequence[Change], keys: Sequence[str], began_s: float, ended_s: float
) -> float:
    """Return the seconds without an owner between two times, summed over the keys."""
    free_since: dict[str, float | None] = dict.fromkeys(keys, 0.0)
    total = 0.0
    for change in changes:
        since = free_since[change.key]
        if change.holder is None:
            free_since[change.key] = change.at_s if since is None else since
        elif since is not None:
            total += max(0.0, min(change.at_s, ended_s) - max(since, began_s))
            free_since[change.key] = None
    open_ends = (since for since in free_since.values() if since is not None)
    return total + sum(max(0.0, ended_s - max(since, began_s)) for since in open_ends)


_BLOCKS = " ▁▂▃▄▅▆▇█"
_MARGIN_S = 3.0
_SVG_WIDTH, _SVG_HEIGHT, _LEFT, _TOP = 960, 512, 48, 40
_LEGEND_COLUMNS, _LEGEND_ROW, _TICK_GAP = 8, 18, 60


def host_of(holder: str) -> str:
    """Return the host's name inside a holder id."""
    return holder.rsplit("-", 2)[0]


def window(run: ScenarioRun) -> tuple[float, float]:
    """Return the first and the last second to draw."""
    return max(0.0, run.began_s - _MARGIN_S), run.ended_s + _MARGIN_S


def sparklines(run: ScenarioRun, *, columns: int) -> list[tuple[str, str, int]]:
    """Return for each host its name, how much it owned over time, and at the end."""
    began_s, ended_s = window(run)
    step_s = (ended_s - began_s) / columns
    moments = [began_s + step_s * (column + 1) for column in range(columns)]
    counts = {host: [0] * columns for host in [*run.hosts, ""]}
    for _key, host, since_s, until_s in _spells(run):
        first, last = bisect_right(moments, since_s), bisect_right(moments, until_s)
        for column in range(first, last):
            counts[host][column] += 1
    max_count = max(max(row) for host, row in counts.items() if host) or 1
    lines = [(host, _line(counts[host], max_count), counts[host][-1]) for host in run.hosts]
    return [*lines, ("no owner", _line(counts[""], max_count), counts[""][-1])]


def svg(run: ScenarioRun) -> str:
    """Return an SVG with one row per key, coloured by owner; white where it had none."""
    began_s, ended_s = window(run)
    scale = (_SVG_WIDTH - _LEFT - 10) / (ended_s - began_s)
    lane = _SVG_HEIGHT / len(run.keys)
    row = {key: number for number, key in enumerate(run.keys)}
    colour = {host: _colour(number) for number, host in enumerate(run.hosts)}
    legend_rows = -(-len(run.hosts) // _LEGEND_COLUMNS)
    height = _TOP + _SVG_HEIGHT + 40 + legend_rows * _LEGEND_ROW
    box = f"0 0 {_SVG_WIDTH} {height}"
    font = 'font-family="sans-serif" font-size="12" shape-rendering="crispEdges"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {font}>',
        f"<title>{escape(_title(run))}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(_title(run))}</text>',
        _rect(_LEFT, _TOP, _SVG_WIDTH - _LEFT - 10, _SVG_HEIGHT, "#f4f4f4"),
    ]
    for key, host, since_s, until_s in _spells(run):
        left, right = max(since_s, began_s), min(until_s, ended_s)
        if host and right > left:
            x, width = _LEFT + (left - began_s) * scale, (right - left) * scale
            parts.append(_rect(x, _TOP + row[key] * lane, width, lane, colour[host]))
    parts += [*_axis(began_s, ended_s, scale), *_legend(run.hosts, colour), "</svg>"]
    return "\n".join(parts) + "\n"


def _title(run: ScenarioRun) -> str:
    m = run.measured
    return (
        f"{m.scenario}: {m.hosts} hosts, {m.partitions} partitions, {m.strategy}, seed {m.seed} "
        "(one lane per partition, colour = owner)"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    size = f'width="{width:.1f}" height="{height:.2f}"'
    return f'<rect x="{x:.1f}" y="{y:.2f}" {size} fill="{fill}"/>'


def _axis(began_s: float, ended_s: float, scale: float) -> Iterator[str]:
    step_s = next(s for s in (1, 2, 5, 10, 20, 50, 100, 500, 5000) if s * scale >= _TICK_GAP)
    second = -(-int(began_s) // step_s) * step_s
    bottom = _TOP + _SVG_HEIGHT
    while second <= ended_s:
        x = _LEFT + (second - began_s) * scale
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="#444"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{second} s</text>'
        second += step_s


def _legend(hosts: Sequence[str], colour: dict[str, str]) -> Iterator[str]:
    width = (_SVG_WIDTH - _LEFT) / _LEGEND_COLUMNS
    for number, host in enumerate(hosts):
        x = _LEFT + number % _LEGEND_COLUMNS * width
        y = _TOP + _SVG_HEIGHT + 36 + number // _LEGEND_COLUMNS * _LEGEND_ROW
        yield _rect(x, y - 9, 11, 11, colour[host])
        yield f'<text x="{x + 16:.1f}" y="{y + 1}">{escape(host)}</text>'


def _spells(run: ScenarioRun) -> Iterator[tuple[str, str, float, float]]:
    """Yield every ownership of every key: key, host ("" for none), from, until."""
    story: dict[str, list[tuple[float, str]]] = {key: [(0.0, "")] for key in run.keys}
    for change in run.changes:
        story[change.key].append((change.at_s, host_of(change.holder) if change.holder else ""))
    end_s = window(run)[1]
    for key, spells in story.items():
        for (since_s, host), (until_s, _) in pairwise([*spells, (end_s + 1.0, "")]):
            yield key, host, since_s, until_s


def _line(counts: Sequence[int], max_count: int) -> str:
    # Something is never drawn as nothing: one key of a thousand still shows.
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[-(-count * steps // max_count) if count else 0] for count in counts)


def _colour(number: int) -> str:
    # Steps of the golden angle keep neighbours apart, however many there are. Written as hex,
    # which every viewer understands.
    hue = number * 137.508 % 360 / 360
    parts = hls_to_rgb(hue, 0.45 + number % 4 * 0.08, 0.60 + number % 3 * 0.12)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)
