"""Exports the counts and states of processors to Prometheus: the extra ``leasehold[metrics]``.

Nothing is counted here. The numbers are read from the processor when Prometheus asks for them, so
metrics cost nothing between two scrapes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from leasehold.errors import UsageError
from leasehold.processor.events import PartitionState

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import REGISTRY, Collector
except ImportError as error:
    raise UsageError(
        "metrics need the package prometheus-client: pip install 'leasehold[metrics]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry

    from leasehold.processor.processor import EventProcessor

_LABELS = ("stream", "group", "name")
_SUMS = {
    "events_handled": "Events that handlers are done with",
    "batches_handled": "Calls of handlers that succeeded, at least in part",
    "bytes_handled": "Bytes of the events that handlers are done with",
    "events_skipped": "Events that were given up",
    "events_dead_lettered": "Events that went to the dead letters",
    "checkpoints_written": "Positions that were stored",
    "checkpoint_calls": "Calls to the store that stored them",
    "possible_repeats": "Events that an earlier owner may have handled without a checkpoint",
}


class ProcessorMetrics(Collector):
    """The metrics of one processor, registered when it is created."""

    def __init__(
        self, processor: EventProcessor, *, registry: CollectorRegistry = REGISTRY
    ) -> None:
        """Register with ``registry``; ``close`` undoes it."""
        self._processor = processor
        self._registry = registry
        self._label_values = (processor.source.name, processor.group, processor.name)
        registry.register(self)

    def close(self) -> None:
        """Unregister from the Prometheus registry."""
        self._registry.unregister(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as they are now."""
        counts = self._processor.counts()
        for name, about in _SUMS.items():
            family = CounterMetricFamily(f"leasehold_{name}", about, labels=_LABELS)
            family.add_metric(self._label_values, getattr(counts, name))
            yield family
        yield self._by("partitions_closed", "Partitions closed", "reason", counts.closed)
        yield self._by("hook_events", "Events that hooks received", "event", counts.by_event)
        yield self._by("store_calls", "Calls to the store", "call", counts.store_calls)
        yield from self._states()

    def _by(self, name: str, about: str, label: str, sums: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(f"leasehold_{name}", about, labels=(*_LABELS, label))
        for value, total in sorted(sums.items()):
            family.add_metric((*self._label_values, value), total)
        return family

    def _states(self) -> Iterator[Metric]:
        status = self._processor.status()
        found = Counter(each.state for each in status)
        states = GaugeMetricFamily(
            "leasehold_partitions", "Partitions held here, by state", labels=(*_LABELS, "state")
        )
        for state in PartitionState:
            states.add_metric((*self._label_values, state.value), found[state])
        yield states
        still = GaugeMetricFamily(
            "leasehold_partition_seconds_since_progress",
            "How long a partition has made no progress",
            labels=(*_LABELS, "partition"),
        )
        position = GaugeMetricFamily(
            "leasehold_partition_next_sequence",
            "The next event of a partition to be handled",
            labels=(*_LABELS, "partition"),
        )
        for each in status:
            still.add_metric((*self._label_values, each.partition), each.still_s)
            if each.next is not None:
                position.add_metric((*self._label_values, each.partition), each.next)
        yield still
        yield position
