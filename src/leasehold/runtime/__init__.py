"""Shared mechanics without a domain: event loops in threads, signals, the check for forks."""
