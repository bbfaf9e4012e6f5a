"""The audit: whether a group kept its guarantees, proved or refuted from what was recorded.

It reads and never changes anything: the terms and checkpoints of the store, the commits and rows of
the sink, and the log. Times of different clocks are shown, and never used in a proof.
"""

from __future__ import annotations

from leasehold.spark.audit.gather import audit
from leasehold.spark.audit.judge import judge
from leasehold.spark.audit.report import Audit, AuditMaterial, Check, Finding, Verdict

__all__ = ["Audit", "AuditMaterial", "Check", "Finding", "Verdict", "audit", "judge"]
