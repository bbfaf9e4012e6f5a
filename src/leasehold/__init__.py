"""Leasehold: one owner at a time for partitions, jobs and files, with fencing epochs."""

from __future__ import annotations

import logging

# A library says nothing unless it is asked to.
logging.getLogger("leasehold").addHandler(logging.NullHandler())
