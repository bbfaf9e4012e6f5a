"""Commands that need no pandas do not wait for it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from leasehold.cli.quick import leave_pandas_out
leave_pandas_out()
import pyarrow as pa
pa.array([1])
assert "pandas" not in sys.modules
import pandas
"""


def test_arrow_finds_no_pandas_and_others_still_do() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
