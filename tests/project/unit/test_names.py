"""A name means one thing, the map of the packages is current, and every word is in the glossary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import tidy_rules as rules
from layout_map import PAGE, layout_map, page_with_map

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "leasehold"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}

# Modules of the same name: what they have in common.
SAME_MODULE = {
    "address": "the URL of one store or source, read",
    "checkpoints": "a noun of the command line, what it shows, and its part of the contract",
    "clock": "the machine's clock, and the one for tests",
    "connection": "one AMQP connection, from the client's end and from the server's",
    "credentials": "what one service of Azure lets in",
    "delivery": "how events reach those who handle them",
    "disk": "the seam to the file system, and the disks for tests behind it",
    "events": "what happened in one runner, for its hooks",
    "faults": "faults of AMQP messages; faults that tests make",
    "fence": "what keeps a former owner out of one kind of data",
    "files": "a noun of the command line; the data files of one sink",
    "group_commit": "calls that share one commit, in one database",
    "groups": "a noun of the command line, and what it shows",
    "jobs": "a noun of the command line, and what it shows",
    "location": "where one thing is: a SQLite file, a checkpoint of Structured Streaming",
    "log": "the log; a noun of the command line; the sink that writes to it",
    "members": "a noun of the command line, and what it shows",
    "migrations": "the schema of one database",
    "model": "the records of one package",
    "options": "the options of one package",
    "partitions": "a noun of the command line, and what it shows",
    "reader": "who reads the files, the log",
    "receiver": "reads one partition of one source",
    "rows": "rows of one database, as records",
    "run": "a command, and a run of a job",
    "session": "one AMQP session, from the client's end and from the server's",
    "sink": "one sink",
    "source": "the contract of a source, and each source",
    "steps": "what each call does, inside one transaction of one database",
    "store": "one store",
    "tables": "tables on a terminal; tables of the audit",
    "threads": "calls from threads into an event loop; threads in simulated time",
    "worker": "the worker; its command; a process that races in the contract suite",
}
# Classes of the same name: why they have it.
SAME_CLASS: dict[str, str] = {}


def repeated(names: dict[str, list[str]], reasons: dict[str, str]) -> list[str]:
    found = [
        f"{name} is used {len(places)} times: {', '.join(places)}"
        for name, places in sorted(names.items())
        if len(places) > 1 and name not in reasons
    ]
    stale = [f"{name} is listed, and is not repeated" for name in reasons if len(names[name]) < 2]
    return found + stale


def test_a_class_name_means_one_thing() -> None:
    names: dict[str, list[str]] = defaultdict(list)
    for path, tree in sorted(MODULES.items()):
        for name in rules.class_names(tree):
            names[name].append(str(path.relative_to(SOURCE)))
    assert repeated(names, SAME_CLASS) == []


def test_modules_of_one_name_have_a_reason() -> None:
    names: dict[str, list[str]] = defaultdict(list)
    for path in sorted(MODULES):
        if path.name != "__init__.py":
            names[path.stem].append(str(path.relative_to(SOURCE)))
    assert repeated(names, SAME_MODULE) == []


def test_the_map_of_the_packages_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with_map(page, layout_map(SOURCE)), "run tools/layout_map.py"


def test_public_methods_are_described_by_themselves_or_by_a_protocol() -> None:
    described = {name for tree in MODULES.values() for name in rules.protocol_methods(tree)}
    findings = [
        f"{path.relative_to(SOURCE)}: {finding}"
        for path, tree in sorted(MODULES.items())
        for finding in (*rules.undocumented_methods(tree, described), *rules.empty_docstrings(tree))
    ]
    if findings:
        pytest.fail("\n" + "\n".join(findings), pytrace=False)


def test_every_entry_of_the_glossary_is_one_sentence_and_in_order() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.splitlines()
        if line.startswith("| **")
    ]
    assert len(rows) > 80
    words = [re.sub(r"[*`]", "", row[0]).lower() for row in rows]
    assert words == sorted(words)
    assert len(set(words)) == len(words)
    for row in rows:
        assert len(row) == 6, row
        assert re.fullmatch(r"[A-Z`].*[^.]\.", row[1]), row
        assert not re.search(r"\. [A-Z]", row[1]), row


def test_rules_see_names_and_docstrings() -> None:
    sample = ast.parse(
        "class P(Protocol):\n    def a(self): 'It does.'\n"
        "class C:\n    def a(self): ...\n    def b(self): ...\n    def c(self): 'See ``P``.'\n"
        "class _D:\n    def b(self): ...\n"
    )
    assert rules.class_names(sample) == ["P", "C", "D"]
    assert rules.protocol_methods(sample) == {"a"}
    assert [each.split()[2] for each in rules.undocumented_methods(sample, {"a"})] == ["C.b"]
    assert len(rules.empty_docstrings(sample)) == 1
    assert repeated({"A": ["x", "y"], "B": ["x"]}, {"B": "why"}) == [
        "A is used 2 times: x, y",
        "B is listed, and is not repeated",
    ]
