"""What CI, ``tools/steady`` and ``make soak`` make of the runs they see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import ci_tests
import soak
import steady
from test_run import TestRun

GREEN = TestRun(code=0, passed=7)


def failed(*tests: str, code: int = 2) -> TestRun:
    return TestRun(code=code, passed=5, failed={each: f"{each} says why" for each in tests})


@pytest.mark.parametrize(
    ("first", "second", "code", "lines"),
    [
        (GREEN, None, 0, []),
        (failed("a", "b"), TestRun(code=0, passed=2), 0, ["UNSTEADY: a", "UNSTEADY: b"]),
        (failed("a"), failed("a", code=1), 1, []),
        (failed("a", "b"), TestRun(code=0, passed=1), 1, []),  # one of them was not run again
        (failed("a", "b", "c", "d"), None, 2, []),
        (TestRun(code=2, failed={"a": ""}, leaks=["a thread"]), None, 2, []),
        (TestRun(code=2, failed={"a": ""}, broken={"b.py": "no such module"}), None, 2, []),
        (TestRun(code=2), None, 2, []),  # it ended without a report
    ],
)
def test_ci_tries_at_most_three_tests_once_more(
    first: TestRun, second: TestRun | None, code: int, lines: list[str]
) -> None:
    asked: list[Sequence[str]] = []

    def again(ids: Sequence[str]) -> TestRun:
        asked.append(ids)
        assert second is not None
        return second

    assert ci_tests.verdict(first, again) == (code, lines)
    assert len(asked) == (second is not None)


def test_steady_runs_idle_beside_busy_loops_and_on_one_core() -> None:
    names = [(name, loops, before[:2]) for name, loops, before in steady.plan(2)]
    assert names == [
        ("idle-1", 0, ()),
        ("idle-2", 0, ()),
        ("busy-1", 2, ()),
        ("busy-2", 2, ()),
        ("one-core", 0, ("taskset", "-c")),
    ]


def test_steady_names_each_test_that_ever_failed_with_its_output() -> None:
    leaky = TestRun(code=2, passed=7, leaks=["thread x: tests/y"])
    lines = steady.summary({"idle-1": GREEN, "busy-1": failed("a"), "busy-2": failed("a", "b")})
    assert lines[0] == "1 of 3 runs are green"
    assert "FAILED in busy-1, busy-2: a" in lines
    assert "    a says why" in lines
    assert "FAILED in busy-2: b" in lines
    assert "FAILED in idle-1: leak: thread x: tests/y" in steady.summary({"idle-1": leaky})


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (GREEN, "7 passed, 0 failed"),
        (failed("a"), "5 passed, 1 failed"),
        (TestRun(code=2, passed=7, leaks=["x"]), "7 passed, 0 failed, 1 leaks"),
        (TestRun(code=9), "0 passed, 0 failed, exit code 9"),
    ],
)
def test_a_run_in_a_few_words(run: TestRun, words: str) -> None:
    assert run.words() == words


def test_each_round_of_the_soak_has_other_seeds() -> None:
    first, second = (list(soak.steps(round_, 1000, 100)) for round_ in (0, 1))
    assert {each.name for each in first}.isdisjoint(each.name for each in second)
    assert sum(each.size for each in first if each.part == "members") == 1000
    assert [each.seeds for each in second if each.part == "members"] == ["1000:1500", "1500:2000"]
    assert [each.size for each in first if each.part == "faults on Spark"] == [100]


def test_a_soak_that_was_interrupted_continues_and_its_page_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "PLACE", tmp_path)
    monkeypatch.setattr(soak, "STATE", tmp_path / "state.json")
    performed: list[str] = []

    def perform(step: soak.Step) -> soak.Done:
        if step.part == "kills of processes" and step.name not in performed:
            performed.append(step.name)
            raise KeyboardInterrupt
        performed.append(step.name)
        bad = ("seed 7 breaks it",) if step.part == "pumps" else ()
        return soak.Done(name=step.name, part=step.part, size=step.size, took_s=60, failed=bad)

    monkeypatch.setattr(soak, "perform", perform)
    assert soak.main(["--seeds", "500"]) == 130
    assert "the same command continues" in capsys.readouterr().out
    before = len(performed)
    assert soak.main(["--seeds", "500"]) == 1
    assert performed[before:] == ["kills 0", "spark 0"]  # what had ended is not done again
    page = capsys.readouterr().out.splitlines()
    assert "FAILED pumps 0:500: seed 7 breaks it" in page
    assert max(map(len, page)) <= 80
    assert not (tmp_path / "state.json").exists()
