"""Schedules: cron lines and intervals, and the moments at which they are due.

``parse_schedule(text, tz=…)`` gives a ``Schedule``. It is pure: all that are given the same text
and the same zone name the same moments, in any process, on any machine. See docs/schedules.md.
"""

from __future__ import annotations

from leasehold.core.cron.schedule import Dialect, Schedule, parse_schedule

__all__ = ["Dialect", "Schedule", "parse_schedule"]
