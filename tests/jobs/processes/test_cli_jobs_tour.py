"""What the pages on jobs and fencing print works as it is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import CommandLine

ROOT = Path(__file__).parents[3]
STORE = "sqlite:///leases.db"


def blocks(page: str, language: str = "") -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def in_a_shell(script: str, place: Path) -> str:
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=place,
        env={**os.environ, "PATH": paths, "LEASEHOLD_STORE": STORE, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}: {done.stderr}"
    return done.stdout


def expected(block: str) -> list[str]:
    return [line for line in block.splitlines() if not line.startswith("$ ")]


class Typist:
    """Types the lines of a page: ``jobs`` in this process, which is faster, all else in a shell."""

    def __init__(self, leasehold: CommandLine, place: Path) -> None:
        self._leasehold = leasehold
        self._place = place

    def typed(self, block: str) -> str:
        return "".join(self.line(each) for each in re.findall(r"^[$] (.*)$", block, re.MULTILINE))

    def line(self, line: str) -> str:
        if not line.startswith("leasehold jobs "):
            return in_a_shell(line, self._place)
        done = self._leasehold(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}: {done.err}"
        return done.out


@pytest.fixture
def typist(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Typist:
    monkeypatch.chdir(tmp_path)
    return Typist(CommandLine(monkeypatch, capfdbinary, STORE), tmp_path)


def test_the_first_runs_of_the_jobs_page_work_as_printed(typist: Typist) -> None:
    first, _, third, fourth, _ = blocks("jobs.md")
    said = typist.typed(first)
    assert [line for line in said.splitlines() if line in expected(first)] == expected(first)
    assert "failed" in said
    assert typist.typed(third).splitlines() == expected(third)
    assert typist.typed(fourth).count(":30:00") == 6


def test_a_second_run_of_the_jobs_page_is_told_that_it_is_held(
    typist: Typist, tmp_path: Path
) -> None:
    """The long one is waited for until it has the job, and ended when the rest was tried."""
    _, second, *_ = blocks("jobs.md")
    begin, pause, again, look = re.findall(r"^[$] (.*)$", second, re.MULTILINE)
    assert (pause, look) == ("sleep 3", "leasehold jobs show nightly")
    os.mkfifo(tmp_path / "begun")
    begin = begin.replace("sleep 60", "sh -c 'echo >begun; sleep 60'")
    end = "leasehold jobs check-epoch nightly 1; kill %1; wait %1 || true"
    said = in_a_shell(f"{begin}\nread <begun\n{again}\n{end}", tmp_path)
    assert expected(second)[0] in said.splitlines()
    assert re.search(r"^last outcome +killed *$", typist.line(look), re.MULTILINE)


def test_the_nightly_job_prints_what_its_page_says(tmp_path: Path) -> None:
    printed = in_a_shell(f"python {ROOT / 'examples' / 'nightly_job.py'}", tmp_path)
    [block] = [each for each in blocks("jobs.md") if "nightly_job.py" in each]
    assert printed.splitlines() == expected(block)


def test_the_fenced_file_of_the_page_works_as_printed(tmp_path: Path) -> None:
    [program] = [each for each in blocks("fencing.md", "python") if "FencedPath" in each]
    (tmp_path / "fenced.py").write_text(program, encoding="utf-8")
    in_a_shell("python fenced.py; python fenced.py", tmp_path)
    assert (tmp_path / "report.csv").read_text(encoding="utf-8") == "day,orders\n"
    assert (tmp_path / ".report.csv.fence").read_text(encoding="utf-8") == '{"token": 2}\n'
