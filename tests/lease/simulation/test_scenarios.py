"""What is promised of balance, measured on the real member in simulated time."""

from __future__ import annotations

import pytest

from leasehold import Strategy
from leasehold.testing.sim.scenario import (
    Measured,
    Scenario,
    ScenarioRun,
    run_scenario,
    sparklines,
    svg,
)


def _measured(scenario: Scenario, strategy: Strategy = Strategy.EVEN, *, seed: int = 0) -> Measured:
    return run_scenario(scenario, hosts=7, partitions=100, strategy=strategy, seed=seed).measured


@pytest.mark.spec("B1", "B2")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scenario", list(Scenario))
def test_even_keeps_its_promises(scenario: Scenario, seed: int) -> None:
    numbers = _measured(scenario, seed=seed)
    assert numbers.cycles <= 2
    assert numbers.moves == numbers.min_moves
    assert numbers.spread <= 1
    assert numbers.calls_per_host_cycle == 1.0
    assert numbers.double_s == 0.0
    if scenario is Scenario.CRASH:  # all is owned one cycle after the lease has ended
        assert numbers.cycles == 1


@pytest.mark.spec("B1")
def test_steady_calls_do_not_depend_on_the_number_of_partitions() -> None:
    few, many = (
        run_scenario(Scenario.COLD, hosts=3, partitions=partitions).measured
        for partitions in (3, 600)
    )
    assert few.calls_per_host_cycle == many.calls_per_host_cycle == 1.0


@pytest.mark.spec("P6", "P7", "P8")
@pytest.mark.parametrize("strategy", [each for each in Strategy if each.steals])
@pytest.mark.parametrize("scenario", [Scenario.COLD, Scenario.JOIN, Scenario.CRASH])
def test_the_older_strategies_get_there_too(scenario: Scenario, strategy: Strategy) -> None:
    assert _measured(scenario, strategy).spread <= 1


def test_a_steal_costs_seconds_with_two_owners_and_a_hand_over_does_not() -> None:
    assert _measured(Scenario.JOIN, Strategy.GREEDY).double_s > 0.0
    assert _measured(Scenario.JOIN, Strategy.EVEN).double_s == 0.0


@pytest.fixture(scope="module")
def run() -> ScenarioRun:
    return run_scenario(Scenario.JOIN, hosts=3, partitions=12)


class TestPicture:
    def test_every_key_is_in_somebodys_row_at_the_end(self, run: ScenarioRun) -> None:
        rows = sparklines(run, columns=40)
        assert sum(last for _, _, last in rows) == 12
        assert {len(line) for _, line, _ in rows} == {40}
        assert rows[-1] == ("no owner", rows[-1][1], 0)

    def test_the_newcomer_starts_with_nothing(self, run: ScenarioRun) -> None:
        name, line, last = sparklines(run, columns=40)[-2]
        assert (name, line[0], last) == ("host04", " ", 3)

    def test_the_drawing_is_well_formed_and_names_every_host(self, run: ScenarioRun) -> None:
        from xml.etree import ElementTree as ET

        root = ET.fromstring(svg(run))
        words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"host01", "host02", "host03", "host04"} <= set(words)
