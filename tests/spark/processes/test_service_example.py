"""The example of a service runs as it is printed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import CommandLine

EXAMPLE = Path(__file__).parents[3] / "examples" / "service.py"
PATIENCE_S = 100
LINES = ('{"customer": "ann", "total": 7}', '{"customer": "ann", "total": 5}')


def test_a_service_handles_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    leasehold = CommandLine(monkeypatch, capfdbinary, f"sqlite:///{tmp_path}/leases.db")
    orders = tmp_path / "orders.jsonl"
    orders.write_text("\n".join(LINES), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLE)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "ready\n"
            with orders.open(encoding="utf-8") as lines:
                monkeypatch.setattr(sys, "stdin", lines)
                assert leasehold("log", "append", "orders").code == 0
            seen = 0
            while seen < 12:
                message = service.stdout.readline().split()
                assert message[2:5] == ["ann", "bought", "for"]
                seen += int(message[5])
            assert seen == 12
            service.send_signal(signal.SIGINT)
            assert service.wait(PATIENCE_S) == 0
        finally:
            service.kill()
