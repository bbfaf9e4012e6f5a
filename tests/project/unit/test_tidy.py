"""The repository under test: each rule over all its files, and over a sample that breaks it."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidy_rules as rules
from spec_table import read_spec

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
NOT_OURS = {".git", ".venv", ".tools", "__pycache__", "build", "dist"}
# The one place where time and randomness come in, and the one where time is simulated.
THE_AIR = ("src/leasehold/clock.py", "src/leasehold/testing/sim/loop.py")


def _files() -> list[str]:
    """All files of the repository that git does not ignore, as paths from the root."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        command = [git, "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            names = set(listed.stdout.split("\0")) - {""}
            return sorted(name for name in names if (ROOT / name).is_file())
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return sorted(
        str(path)
        for path in found
        if not NOT_OURS & set(path.parts) and not path.parts[0].endswith(("_cache", ".hypothesis"))
    )


FILES = _files()
PYTHON = [name for name in FILES if name.endswith(".py")]
OURS = [name for name in PYTHON if name.startswith("src/")]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _none(findings: list[str]) -> None:
    """Fail with all the findings, whole, instead of an assertion that cuts them short."""
    if findings:
        pytest.fail("\n" + "\n".join(findings), pytrace=False)


def _obey(rule: Callable[[str], list[str]], names: list[str]) -> None:
    assert names, "nothing to look at: the rule would pass unseen"
    _none([f"{name}: {finding}" for name in names for finding in rule(_text(name))])


def test_files_are_short() -> None:
    _obey(rules.too_long, PYTHON)


def test_modules_obey_the_rules_of_their_code() -> None:
    """Functions fit on a screen, time and chance are handed in, SQL lives in its files, ..."""
    assert OURS, "nothing to look at: the rules would pass unseen"
    findings = []
    for name in OURS:  # one after the other: a tree is big
        tree = ast.parse(_text(name), filename=name)
        found = [*rules.long_functions(tree), *rules.no_docstring(tree)]
        if name not in THE_AIR:
            found += rules.taken_from_the_air(tree)
        if "/stores/" in name:
            found += rules.sql_in_python(tree)
        findings += [f"{name}: {each}" for each in found]
    _none(findings)


def test_source_is_finished() -> None:
    _obey(rules.unfinished, [name for name in FILES if name.startswith("src/")])


def test_no_tabs_in_python() -> None:
    _obey(rules.tabs, PYTHON)


def test_files_end_with_a_newline() -> None:
    _obey(rules.no_final_newline, FILES)


def test_no_registry_is_named() -> None:
    _obey(rules.registry_hosts, FILES)


def test_no_path_of_one_machine() -> None:
    _obey(rules.machine_paths, FILES)


def test_no_stray_files() -> None:
    _none([f"{name}: {finding}" for name in FILES for finding in rules.stray(name)])


def test_no_big_files() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in FILES}
    limit = rules.MAX_FILE_BYTES
    _none(
        [f"{name}: {size} bytes, {limit} at most" for name, size in sizes.items() if size > limit]
    )


def test_there_is_one_lock() -> None:
    locks = [name for name in FILES if name.endswith(".lock")]
    assert locks == ["requirements.lock"], "requirements.lock is the lock; `make lock` remakes it"


def _marks() -> dict[str, set[str]]:
    """Spec id -> the files with a test that is marked with it."""
    marks: dict[str, set[str]] = {}
    for name in PYTHON:
        if name.startswith(("tests/", "src/leasehold/testing/")) and "spec" in _text(name):
            for spec_id in rules.spec_ids(ast.parse(_text(name))):
                marks.setdefault(spec_id, set()).add(name)
    return marks


def test_every_built_behaviour_has_a_test_and_no_test_proves_an_unknown_one() -> None:
    spec, marks = read_spec(_text("docs/spec.md")), _marks()
    assert spec, "docs/spec.md has no table rows that can be read"
    missing = [spec_id for spec_id, built in spec.items() if built and spec_id not in marks]
    unknown = {i: sorted(names) for i, names in marks.items() if i not in spec}
    _none(
        [f"{i}: built by docs/spec.md, and no test carries its mark" for i in missing]
        + [f"{i}: not in docs/spec.md, marked in {', '.join(n)}" for i, n in unknown.items()]
    )


# The rules themselves: each finds what breaks it, and leaves alone what does not.

LONG = "def f():\n" + "    x = 1\n" * 70


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nwait = t.sleep",
        "from time import monotonic\nmonotonic()",
        "def f(now=time.monotonic): ...\nimport time",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import datetime\ndatetime.utcnow()",
        "import random\nrandom.shuffle([])",
        "from random import choice\nchoice([1])",
        "import random\nrandom.Random()",
        "import uuid\nuuid.uuid4()",
        "import secrets\nsecrets.token_hex()",
        "async def f():\n    import anyio\n    await anyio.sleep(1)",
    ],
)
def test_rule_sees_what_is_taken_from_the_air(source: str) -> None:
    assert rules.taken_from_the_air(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import random\nrng = random.Random(7)\nrng.random()",
        "from random import Random\ndef f(rng: Random) -> Random: return rng",
        "import time\ntime.strftime('%H')",
        "class C:\n    def time(self): ...\nC().time()",
        "from datetime import datetime\ndatetime.fromtimestamp(0)",
    ],
)
def test_rule_lets_pass_what_is_handed_in(source: str) -> None:
    assert not rules.taken_from_the_air(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "x = 'SELECT 1'",
        "x = 'update t set a = 1'",
        "x = f'update {t} set a = 1'",
        "x = 'insert into t values (1)'",
        "x = 'insert or ignore into t values (1)'",
        "x = '''\n  delete from t\n'''",
        "x = 'create table t (a)'",
        "x = 'with a as (values (1)) table a'",
        "def f(): return 'select a ' 'from b '",
    ],
)
def test_rule_sees_sql(source: str) -> None:
    assert rules.sql_in_python(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "x = 'BEGIN IMMEDIATE', 'COMMIT', 'ROLLBACK', 'PRAGMA journal_mode = WAL'",
        '"""select a from b"""\ndef f():\n    """Delete from the table."""',
        "x = 'update the package and delete the old file'",
        "x = 'with each claim'",
    ],
)
def test_rule_lets_pass_words_and_transactions(source: str) -> None:
    assert not rules.sql_in_python(ast.parse(source))


def test_rules_see_length() -> None:
    assert rules.too_long("\n" * 801)
    assert not rules.too_long("\n" * 800)
    assert rules.long_functions(ast.parse(LONG))
    assert rules.long_functions(
        ast.parse("class C:\n" + LONG.replace("\n", "\n ").replace("def", " async def", 1))
    )
    assert not rules.long_functions(ast.parse(LONG.replace("    x = 1\n", "", 1)))


def test_rules_see_text() -> None:
    assert rules.no_docstring(ast.parse("x = 1"))
    assert not rules.no_docstring(ast.parse("'''It says.'''"))
    assert rules.unfinished("x = 1  # TO" + "DO: finish")
    assert not rules.unfinished("todos are over")
    assert rules.tabs("if x:\n\tpass\n")
    assert not rules.tabs("if x:\n    pass\n")
    assert rules.no_final_newline("x")
    assert not rules.no_final_newline("x\n")
    assert not rules.no_final_newline("")


@pytest.mark.parametrize(
    "host", ["pypi" + ".org", "files.python" + "hosted.org", "registry.npm" + "js.org"]
)
def test_rule_sees_registries(host: str) -> None:
    assert rules.registry_hosts(f"--index https://{host}/simple")
    assert not rules.registry_hosts("pip install leasehold")


@pytest.mark.parametrize("top", ["home", "root", "opt", "Users"])
def test_rule_sees_machine_paths(top: str) -> None:
    assert rules.machine_paths(f'open("/{top}/me/x")')
    assert not rules.machine_paths(f"docs/{top}/x and https://example.com/{top}/x")


@pytest.mark.parametrize(
    "path", ["uv.lock", "notes.txt", "src/leasehold/core/a.pyc", "docs/plan.docx"]
)
def test_rule_sees_strays(path: str) -> None:
    assert rules.stray(path)


@pytest.mark.parametrize("path", ["Makefile", ".ci/run", "src/leasehold/stores/sql/claim.sql"])
def test_rule_knows_the_rooms(path: str) -> None:
    assert not rules.stray(path)


def test_rule_reads_spec_marks() -> None:
    marked = "import pytest\n@pytest.mark.spec('P7', 'L1')\n@pytest.mark.spec(X)\ndef test(): ..."
    assert sorted(rules.spec_ids(ast.parse(marked))) == ["L1", "P7", "X (not a literal)"]
