"""What a partition remembers of its producers, against a set of all numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasehold.events import Event
from leasehold.events.event import sent_batch
from leasehold.log import producer_states
from leasehold.log.segment_format import FrameHeader, ProducerStamp, encode_events

NUMBERS = st.tuples(st.integers(0, 60), st.integers(1, 8))


@given(st.lists(NUMBERS, max_size=30), st.integers(1, 5), st.booleans(), st.booleans())
def test_the_state_of_a_producer_is_right_or_says_that_it_is_not_known(
    sent: list[tuple[int, int]], max_gaps: int, has_forgotten: bool, encoded: bool
) -> None:
    states, stored = producer_states.ProducerStates(has_forgotten=has_forgotten), set[int]()
    before, producer_states.MAX_GAPS = producer_states.MAX_GAPS, max_gaps
    try:
        for first, many in sent:
            header = frame(first, many)
            producer_states.note_producer(states, header)
            stored |= set(range(first, first + many))
            assert len(states[header.producer].gaps) <= max_gaps
            if encoded:
                states = again(states)
    finally:
        producer_states.MAX_GAPS = before
    if not sent:
        return
    said = {
        number: state
        for low, high, state in states[frame(0, 1).producer].split(0, 100)
        for number in range(low, high)
    }
    assert sorted(said) == list(range(100))
    known = {number for number, state in said.items() if state.value != "unknown"}
    assert {n for n in known if said[n].value == "stored"} == stored & known
    gaps = sum(1 for n in range(1, 68) if n in stored and n - 1 not in stored)
    if not has_forgotten and gaps <= 1:
        assert known == set(range(100))


def frame(first: int, many: int) -> FrameHeader:
    batch = sent_batch([Event(body=b"")] * many)
    stamp = ProducerStamp(producer=b"p" * 16, sequence=first)
    return encode_events(
        batch, base_sequence=0, offset=0, enqueued_us=1, epoch=1, producer=stamp
    ).header


def again(states: producer_states.ProducerStates) -> producer_states.ProducerStates:
    made = producer_states.encode_producers(
        states, base_sequence=0, offset=0, enqueued_us=1, epoch=1
    )
    found = producer_states.read_producers(made.joined(), made.header)
    assert found == states
    assert found.has_forgotten == states.has_forgotten
    return found
