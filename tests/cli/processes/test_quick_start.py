"""Commands do not wait for what they have no use for: it would take longer than all they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

from leasehold.cli import main

HEAVY = {"azure", "numpy", "pandas", "psycopg", "pyarrow", "pyspark", "rich.progress"}
STORE = ("--store", "sqlite:///leases.db")


def leasehold(*words):
    sys.argv = ["leasehold", *words]
    try:
        main()
    except SystemExit as left:
        assert not left.code, (words, left.code)
    found = HEAVY & sys.modules.keys()
    assert not found, (words, found)


open("leases.db", "wb").close()  # a new one would be spoken of, on rich's paper
leasehold("run", "--job", "nightly", *STORE, "--", "true")
assert "rich" not in sys.modules
leasehold("jobs", "ls", *STORE)
leasehold("jobs", "history", "nightly", *STORE)
leasehold("groups", "ls", *STORE)
leasehold("partitions", "--help")
leasehold("--help")

import pyarrow as pa

pa.array([1])
assert "pandas" not in sys.modules, "Arrow has looked for pandas"
import pandas  # and others still find it
"""


def test_commands_load_nothing_heavy_and_arrow_no_pandas(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "nightly" in ran.stdout
