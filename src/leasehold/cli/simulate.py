"""``leasehold simulate``: fault runs by the thousand, and measured scenarios."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from leasehold.cli.tables import err, out
from leasehold.core.balance import Strategy
from leasehold.errors import UsageError
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.scenario import (
    Measured,
    Scenario,
    ScenarioRun,
    run_scenario,
    sparklines,
    svg,
    window,
)

_CHART_COLUMNS = 52
_MAX_CHART_ROWS = 12
_MAX_HOSTS, _MAX_PARTITIONS = 1_000, 100_000


class SimulateOutput(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class FaultKind(StrEnum):
    """What runs under faults."""

    MEMBER = "member"
    PUMPS = "pumps"
    FILES = "files"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FaultRuns:
    """The runs of one kind: ``run`` is ``module:function`` of the simulator, of a seed.

    ``sums``: what is shown of all runs together, and the field of a run that it is the sum of.
    """

    run: str
    sums: tuple[tuple[str, str], ...]


# Each module is imported when it is asked for: some of them take their time.
_FAULT_RUNS = {
    FaultKind.MEMBER: _FaultRuns(
        run="fault_run:run_faults",
        sums=(
            ("hosts", "hosts"),
            ("owner_changes", "changes"),
            ("writes_accepted", "writes_accepted"),
            ("writes_fenced", "writes_refused"),
        ),
    ),
    FaultKind.PUMPS: _FaultRuns(
        run="pump_run:run_pump_faults",
        sums=(
            ("hosts", "hosts"),
            ("owner_changes", "changes"),
            ("events", "events"),
            ("handler_calls", "calls"),
            ("repeated_calls", "repeated"),
            ("sink_writes_fenced", "zombies"),
            ("writes_accepted", "writes_accepted"),
            ("writes_fenced", "writes_refused"),
        ),
    ),
    FaultKind.FILES: _FaultRuns(
        run="files_run:run_files",
        sums=(
            ("processes", "processes"),
            ("volumes", "volumes"),
            ("faults", "faults"),
            ("power_cuts", "power_cuts"),
            ("bytes_acknowledged", "acknowledged"),
            ("recoveries", "recoveries"),
            ("losses_reported", "losses"),
            ("steps_fenced", "refused"),
        ),
    ),
    FaultKind.JOBS: _FaultRuns(
        run="jobs_run:run_job_faults",
        sums=(
            ("processes", "hosts"),
            ("jobs", "jobs"),
            ("runs", "runs"),
            ("repeated_runs", "repeated"),
            ("owner_changes", "changes"),
            ("writes_accepted", "writes_accepted"),
            ("writes_fenced", "writes_refused"),
        ),
    ),
}

EXAMPLES = """Examples:

leasehold simulate --seeds 1000

leasehold simulate --seed 780 --story

leasehold simulate --kind jobs --seeds 100

leasehold simulate --hosts 32 --partitions 1024 --scenario join --compare
"""


def simulate(
    *,
    hosts: Annotated[
        int | None,
        typer.Option(help="Hosts at the start: 32.", min=1, max=_MAX_HOSTS, metavar="N"),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(help="Partitions to share: 1024.", min=1, max=_MAX_PARTITIONS, metavar="N"),
    ] = None,
    scenario: Annotated[
        Scenario | None,
        typer.Option(help="What happens: cold, join, crash, roll or churn.", metavar="NAME"),
    ] = None,
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            help="How keys are shared out: even, balanced, greedy, one_steal, biggest_owner "
            "or by_load.",
            metavar="NAME",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run every strategy on the same scenario.", metavar="")
    ] = False,
    kind: Annotated[
        FaultKind | None,
        typer.Option(
            help="What runs under faults: member (the default), pumps, files or jobs.",
            metavar="NAME",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Make this many fault runs, one for each seed.", min=1, metavar="N"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The (first) seed; alone, it repeats that fault run.", metavar="N"),
    ] = None,
    story: Annotated[
        bool,
        typer.Option("--story", help="Print each step of a fault run (--seed).", metavar=""),
    ] = False,
    output: Annotated[
        SimulateOutput, typer.Option("--output", "-o", help="table or json.", metavar="FORM")
    ] = SimulateOutput.TABLE,
    svg_file: Annotated[
        Path | None,
        typer.Option("--svg", help="Draw ownership over time into this file.", metavar="FILE"),
    ] = None,
) -> None:
    """Run the real code on simulated clocks and a simulated store.

    A scenario is measured without faults. Fault runs (--seeds, or --seed alone) have crashes,
    pauses, clock errors and lost messages, or bad disks (--kind files). They search for a broken
    invariant: exit code 1 if there is one.
    """
    _silence()
    if scenario is None and (seeds is not None or seed is not None or kind is not None):
        _check_fault_runs(
            (hosts, partitions, strategy, svg_file, compare or None), seeds, story=story
        )
        _run_all(kind or FaultKind.MEMBER, seed or 0, seeds or 1, output, story=story)
        return
    _check_scenario(scenario, kind, seeds, hosts, svg_file, story=story)
    chosen = list(Strategy) if compare else [strategy or Strategy.EVEN]
    happens = scenario or Scenario.JOIN
    _scenarios(happens, chosen, hosts or 32, partitions or 1024, seed or 0, output, svg_file)


def _check_fault_runs(of_scenario: tuple[object, ...], seeds: int | None, *, story: bool) -> None:
    if any(each is not None for each in of_scenario):
        raise UsageError(
            "a fault run draws everything from its seed: leave --hosts, --partitions, "
            "--strategy, --compare and --svg out, or add a --scenario"
        )
    if story and seeds is not None:
        raise UsageError("--story prints one fault run: give it one --seed")


def _check_scenario(
    scenario: Scenario | None,
    kind: FaultKind | None,
    seeds: int | None,
    hosts: int | None,
    svg_file: Path | None,
    *,
    story: bool,
) -> None:
    if kind is not None:
        raise UsageError("--kind is of fault runs: leave it out, or the --scenario")
    if seeds is not None:
        raise UsageError("--seeds makes fault runs; a --scenario takes one --seed")
    if story:
        raise UsageError("--story prints a fault run: give it a --seed and no --scenario")
    if scenario is Scenario.CRASH and hosts == 1:
        raise UsageError("--scenario crash needs at least 2 --hosts: somebody has to be left")
    if svg_file is not None and not svg_file.parent.is_dir():
        raise UsageError(f"--svg: there is no folder {svg_file.parent}: make it first")
    if svg_file is not None and svg_file.is_dir():
        raise UsageError(f"--svg: {svg_file} is a folder: give a file name")


# ------------------------------------------------------------------- fault runs


def _run_all(
    kind: FaultKind,
    first: int,
    count: int,
    output: SimulateOutput,
    *,
    story: bool,
) -> None:
    runs: list[Any] = []
    broken: list[str] = []
    seeds = range(first, first + count)
    results = [_run_one(kind, first, err.print)] if story else _run_seeds(kind, seeds)
    with _progress(f"fault runs of {kind.value}", count) as tick:
        for result in results:
            if isinstance(result, str):
                broken.append(result)
            else:
                runs.append(result)
            tick()
    summary = {
        "kind": kind.value,
        "seeds": count,
        "first_seed": first,
        "violations": broken,
        "simulated_minutes": round(sum(run.simulated_s for run in runs) / 60, 1),
        **{
            name: sum(getattr(run, of_run) for run in runs)
            for name, of_run in _FAULT_RUNS[kind].sums
        },
    }
    if output is SimulateOutput.JSON:
        out.print_json(json.dumps(summary))
    else:
        _print_summary(summary, broken, kind)
    if broken:
        raise typer.Exit(1)


def _run_seeds(kind: FaultKind, seeds: range) -> Iterator[Any]:
    workers = min(len(seeds), os.cpu_count() or 1)
    if workers == 1:
        yield from map(partial(_run_one, kind), seeds)
        return
    with ProcessPoolExecutor(workers, initializer=_silence) as pool:
        yield from pool.map(partial(_run_one, kind), seeds, chunksize=4)


def _silence() -> None:
    """Drop the log messages of simulated hosts: their failures are the point of the run."""
    logging.getLogger("leasehold").addHandler(logging.NullHandler())


def _run_one(kind: FaultKind, seed: int, trace: Callable[[str], None] | None = None) -> Any:
    """Return the result of a fault run, or as text which invariant was broken."""
    module, _, name = _FAULT_RUNS[kind].run.partition(":")
    run = getattr(import_module(f"leasehold.testing.sim.{module}"), name)
    try:
        return run(seed, trace=trace)
    except InvariantBroken as broken:
        return str(broken)


def _print_summary(summary: dict[str, object], broken: list[str], kind: FaultKind) -> None:
    table = Table(show_header=False, box=box.SIMPLE)
    for name, value in summary.items():
        if name != "violations":
            shown = f"{value:,}" if isinstance(value, int | float) else str(value)
            table.add_row(name.replace("_", " "), str(value) if name == "first_seed" else shown)
    table.add_row("violations", str(len(broken)), style="red" if broken else "green")
    out.print(table)
    of_kind = "" if kind is FaultKind.MEMBER else f"--kind {kind.value} "
    for each in broken:
        out.print(each, style="red")
        seed = each.removeprefix("seed ").split(":", maxsplit=1)[0]
        err.print(f"repeat it with: leasehold simulate {of_kind}--seed {seed}")


# -------------------------------------------------------------------- scenarios


def _scenarios(
    scenario: Scenario,
    strategies: list[Strategy],
    hosts: int,
    partitions: int,
    seed: int,
    output: SimulateOutput,
    svg_file: Path | None,
) -> None:
    runs: list[ScenarioRun] = []
    with _progress(f"{scenario.value}, {hosts} x {partitions}", len(strategies)) as tick:
        for strategy in strategies:
            runs.append(
                run_scenario(
                    scenario, hosts=hosts, partitions=partitions, strategy=strategy, seed=seed
                )
            )
            tick()
    if svg_file is not None:
        svg_file.write_text(svg(runs[0]), encoding="utf-8")
        err.print(f"picture: {svg_file}")
    if output is SimulateOutput.JSON:
        numbers = [asdict(run.measured) for run in runs]
        out.print_json(json.dumps(numbers[0] if len(numbers) == 1 else {"runs": numbers}))
        return
    out.print(_table([run.measured for run in runs]))
    _print_chart(runs[0])


def _table(measured: list[Measured]) -> Table:
    first = measured[0]
    table = Table(
        title=f"{first.scenario}: {first.hosts} hosts, {first.partitions} partitions, "
        f"seed {first.seed}",
        caption="calls: per host and cycle, when steady\n"
        "idle: without a living owner, double: with two at work, over all keys",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strategy", no_wrap=True)
    for name in ("cycles", "moves", "least", "spread", "calls", "idle s", "double s"):
        table.add_column(name, justify="right")
    for m in measured:
        table.add_row(
            m.strategy,
            str(m.cycles),
            str(m.moves),
            str(m.min_moves),
            str(m.spread),
            f"{m.calls_per_host_cycle:g}",
            f"{m.unowned_s:,.1f}",
            f"{m.double_s:,.1f}",
        )
    return table


def _print_chart(run: ScenarioRun) -> None:
    """Print the hosts that had a fault, and a few of the others."""
    lines = sparklines(run, columns=_CHART_COLUMNS)
    hosts, free = lines[:-1], lines[-1]
    by_change = sorted(hosts, key=lambda each: len(set(each[1])), reverse=True)
    shown = by_change[:_MAX_CHART_ROWS]
    out.print()
    out.print(f"keys owned by each host over time, {run.measured.strategy}")
    for name, line, last in [each for each in hosts if each in shown] + [free]:
        out.print(f"{name:>9} {line:<{_CHART_COLUMNS}} {last:>5}")
    began_s, ended_s = window(run)
    axis = f"{began_s:.0f} s".ljust(_CHART_COLUMNS - 7) + f"{ended_s:.0f} s".rjust(7)
    out.print(f"{'':>9} {axis}")
    if len(hosts) > len(shown):
        out.print(f"{'':>9} ({len(hosts) - len(shown)} more hosts, not shown)")


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr, if it is a terminal."""
    if not err.is_terminal:
        yield lambda: None
        return
    from rich.progress import (  # noqa: PLC0415 - it takes its time
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog=EXAMPLES)(simulate)
