"""Every scenario of docs/scenarios.md is there once, and is played exactly if it says so."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
IDS = [f"S{number:02}" for number in range(1, 87)]
_ROW = re.compile(r"^\| (S\d+) \| (.+) \| (yes|no)\b(.*) \|$", re.MULTILINE)


def scenario_ids(tree: ast.Module) -> list[str]:
    """The ids in the `pytest.mark.scenario(...)` marks of a module."""
    return [
        argument.value
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        else f"{ast.unparse(argument)} (not a literal)"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "scenario"
        and ast.unparse(node.func).endswith("mark.scenario")
        for argument in node.args
    ]


def _rows() -> list[tuple[str, str, str, str]]:
    return _ROW.findall((ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8"))


def _played() -> Counter[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return Counter(
        scenario
        for text in texts
        if "scenario" in text
        for scenario in scenario_ids(ast.parse(text))
    )


def test_every_scenario_has_exactly_one_line_and_they_are_in_order() -> None:
    assert [scenario for scenario, *_ in _rows()] == IDS


def test_a_scenario_that_is_not_played_says_why() -> None:
    silent = [
        scenario for scenario, _, here, why in _rows() if here == "no" and not why.startswith(": ")
    ]
    assert silent == []


def test_what_is_said_to_be_played_is_played() -> None:
    played = _played()
    missing = [
        scenario for scenario, _, here, _ in _rows() if here == "yes" and not played[scenario]
    ]
    assert missing == []


def test_what_is_said_not_to_be_played_is_not() -> None:
    played = _played()
    assert [scenario for scenario, _, here, _ in _rows() if here == "no" and played[scenario]] == []


def test_no_test_plays_a_scenario_that_is_not_listed() -> None:
    assert sorted(set(_played()) - set(IDS)) == []


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ('@pytest.mark.scenario("S55")\ndef test_a(): ...', ["S55"]),
        ('@pytest.mark.scenario("S55", "S56")\ndef test_a(): ...', ["S55", "S56"]),
        ('pytestmark = [pytest.mark.scenario("S01")]', ["S01"]),
        ("@pytest.mark.scenario(ID)\ndef test_a(): ...", ["ID (not a literal)"]),
        ('@pytest.mark.spec("F7")\ndef test_a(): ...', []),
    ],
)
def test_the_marks_of_a_module_are_found(source: str, ids: list[str]) -> None:
    assert scenario_ids(ast.parse(source)) == ids
