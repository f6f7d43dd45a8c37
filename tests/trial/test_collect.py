"""Messages to records: what is accepted, what becomes a violation, and how time is taken from it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.trial.collect import Collector, clock_disagreement, measure, window_seconds

STEP = {
    "t": "step",
    "loss": 1.5,
    "backward_calls": 1,
    "rows": 4,
    "tokens": 64,
    "row_hash": "0f",
    "token_hash": "f0",
    "grad_norm": 0.5,
    "clip_calls": 1,
    "update_sketch": [0.1, 0.2],
    "hyper_digest": "h",
    "shadow_error": 1e-7,
}
END = {
    "t": "end",
    "peak_allocated_bytes": 10,
    "peak_reserved_bytes": 12,
    "parameters": [{"name": "w", "shape": [2, 3], "dtype": "torch.float32", "trainable": True}],
    "parameter_hash": "abc",
    "hyper_parameters": [
        {"step": 1, "optimizer": "AdamW", "group": 0, "values": [["lr", 0.1], ["betas", [0.9, 0.95]]]}
    ],
    "hooks_intact": True,
    "optimizer_steps": 4,
}


def line(**message):
    return json.dumps(message).encode()


def hello(collector, rank=0, world=1, at=0.0):
    return collector.feed(line(t="hello", token="secret", rank=rank, world=world), at, None)


def walk(collector, rank, arrivals, clocks=None):
    for step, arrival in enumerate(arrivals, start=1):
        clock = (clocks or arrivals)[step - 1]
        collector.feed(line(t="tick", step=step, clock=clock), arrival, rank)
        collector.feed(line(**STEP, step=step), arrival + 0.001, rank)


def test_records_carry_our_arrival_not_the_ranks_word():
    """R-A2: the rank's clock is kept beside ours, and nothing is measured with it."""
    collector = Collector("secret", 1)
    hello(collector)
    walk(collector, 0, [10.0, 11.0, 12.0, 13.0], clocks=[0.0, 0.1, 0.2, 0.3])
    collector.feed(line(**END), 14.0, 0)
    steps = collector.records(1, 4)
    assert [s.arrival_seconds for s in steps] == [10.0, 11.0, 12.0, 13.0]
    assert [s.shadow_error for s in steps] == [1e-7] * 4
    assert [s.in_window for s in steps] == [False, True, True, True]
    assert window_seconds(steps) == (3.0, 3)
    found = measure(steps, collector.ends(), steps_wanted=3, clocks=0.0)
    assert (
        found is not None and found.mean_step_seconds == 1.0 and found.tokens == 192 and found.step_seconds == (1, 1, 1)
    )
    worst, violation = clock_disagreement(list(collector.ranks.values()), 1, 4)
    assert worst == pytest.approx(0.9) and violation is not None and violation.ring == "time"


def test_the_slowest_rank_counts_and_a_rank_cannot_excuse_a_step_from_the_clock():
    """R-A2: a step that a rank calls a check step is timed like any other."""
    collector = Collector("secret", 2)
    for rank, arrivals in enumerate(([1.0, 2.0, 3.0, 4.0], [1.0, 2.5, 4.0, 5.5])):
        hello(collector, rank, 2)
        walk(collector, rank, arrivals)
        collector.ranks[rank].steps[3]["check"] = True
    assert window_seconds(collector.records(1, 4)) == (4.5, 3)


def test_end_is_read_whole():
    collector = Collector("secret", 1)
    hello(collector)
    collector.feed(line(**END), 1.0, 0)
    (end,) = collector.ends()
    assert end.parameters[0].shape == (2, 3) and end.hooks_intact
    assert end.hyper_parameters[0].values == (("betas", "[0.9, 0.95]"), ("lr", 0.1))
    assert not collector.violations


@pytest.mark.parametrize(
    "message",
    [
        b"step 3: loss 2.1",
        b"[]",
        line(t="unknown"),
        line(t="tick", step=1.5, clock=1),
        line(t="tick", step=True, clock=1),
        line(t="tick", step=1, clock="now"),
        line(**STEP, step=9),
        line(t="model", parameters=[["w"]]),
        line(t="end"),
        b"\xff\xfe",
        b'{"t":"tick","step":1,"clock":1' + b"0" * 5000 + b"}",
    ],
)
def test_malformed_messages_are_violations(message):
    collector = Collector("secret", 1)
    hello(collector)
    assert collector.feed(message, 1.0, 0) is None
    assert [v.check for v in collector.violations] == ["protocol"]


def test_nothing_counts_without_the_token():
    collector = Collector("secret", 1)
    assert collector.feed(line(t="hello", token="guess", rank=0, world=1), 1.0, None) is None
    assert collector.feed(line(t="tick", step=1, clock=1.0), 1.0, None) is None
    assert not collector.ranks and len(collector.violations) == 2


def test_skipped_and_repeated_ticks_are_violations():
    collector = Collector("secret", 1)
    hello(collector)
    for step in (1, 3, 3):
        collector.feed(line(t="tick", step=step, clock=1.0), float(step), 0)
    assert [v.check for v in collector.violations] == ["tick-order", "tick-order"]


def test_another_world_size_is_a_violation():
    collector = Collector("secret", 2)
    hello(collector, 0, 1)
    assert [v.check for v in collector.violations] == ["world-size"]
    assert not collector.complete


def test_a_fault_of_the_probe_is_not_an_error_of_the_training():
    collector = Collector("secret", 1)
    hello(collector)
    collector.feed(line(t="error", kind="probe", message="KeyError: 'x'", oom=False, phase="forward"), 1.0, 0)
    assert not collector.errors and [v.check for v in collector.violations] == ["probe"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
kinds = st.sampled_from(["hello", "model", "tick", "step", "hyper", "done", "end", "error", "exit"])
names = st.sampled_from([*STEP, *END, "step", "clock", "groups", "phases", "kind", "message", "unique_rows"])


@given(st.lists(st.tuples(kinds, st.dictionaries(names, values, max_size=6)), max_size=6))
def test_no_message_breaks_the_collector(messages):
    """Whatever a rank sends, the parent goes on: a violation at most."""
    collector = Collector("secret", 1)
    hello(collector)
    collector.feed(line(t="tick", step=1, clock=1.0), 1.0, 0)
    for kind, fields in messages:
        collector.feed(line(**{**fields, "t": kind}), 2.0, 0)
    collector.records(0, 5)
    collector.ends()
