"""A handler that fails is seen on stderr, without logging and without on_error."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from leasehold.processor import EventProcessor
from leasehold.testing.source import MemorySource

source = MemorySource("orders")
source.append("0", b"x")
calls = []


def handle(context, event):
    calls.append(event)
    if len(calls) == 1:
        raise ValueError("a bad order")
    processor.stop_soon()


processor = EventProcessor(source, "memory://", "billing", on_event=handle)
processor.run()
"""


@pytest.mark.spec("P11")
def test_a_failing_handler_is_shown_with_its_traceback() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert "partition 0 (epoch 1) of orders: ValueError: a bad order" in ran.stderr
    assert 'raise ValueError("a bad order")' in ran.stderr or "in handle" in ran.stderr
    assert ran.stdout == ""
