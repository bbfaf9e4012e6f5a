"""Leasehold: one owner at a time for partitions, jobs and files, with fencing epochs."""
