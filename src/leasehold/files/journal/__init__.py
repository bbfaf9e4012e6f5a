"""The journal: the namespace's tables and their atomic steps.

================  ==================================================================
module            what it knows
================  ==================================================================
``journal``       the entry point: each method is one step
``group_commit``  steps of several threads in one transaction
``unit_of_work``  one transaction: numbers, lines of history, holders
``steps``         create and append; next block, close; recoveries; paths; holders
``rows``          how rows become records, and the errors of refused steps
================  ==================================================================
"""

from __future__ import annotations

from leasehold.files.journal.journal import Journal

__all__ = ["Journal"]
