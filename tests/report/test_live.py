"""What a person sees while a run goes on."""

import io
import json
from dataclasses import dataclass, field

import ledgers
import pytest

from infrarsi.report.live import event_sink
from infrarsi.report.live_state import LiveState


@pytest.fixture(autouse=True)
def _width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


@dataclass
class Event:
    kind: str
    text: str = ""
    body: dict = field(default_factory=dict)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(lines, **options):
    sink = event_sink(**options)
    for line in lines:
        sink(Event(line.kind, body=line.body))


def test_plain_lines_one_per_trial(tmp_path):
    stream = io.StringIO()
    play(ledgers.accepted(tmp_path), stderr=stream, color=True)
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert [x for x in lines if x.startswith("[2/10]")] == [
        "[2/10] micro_batch=16 x 2, +sdpa: ok 0.500 s per step, 2.40 GiB, about 1.50x [1.47x, 1.53x]"
    ]
    assert "[4/10] +sdpa: rejected 16 rows per step instead of 32" in lines
    assert lines[-1].startswith("done: done; accepted: 1.50x [1.46x, 1.54x] micro_batch=16 x 2, +sdpa; device time")


def test_before_a_verdict_the_best_is_called_unverified(tmp_path):
    """R-B6."""
    state = LiveState(lambda: 0.0)
    for line in ledgers.accepted(tmp_path):
        if line.kind == "verdict":
            break
        state.take(line.kind, "", line.body)
    assert state.headline() == "best so far, not verified: 1.50x [1.47x, 1.53x] micro_batch=16 x 2, +sdpa"
    assert state.cost() == "device time 4 min 40 s, of which failed 80.0 s"


def test_what_is_left_is_said_while_searching(tmp_path):
    state = LiveState(lambda: 0.0)
    for line in ledgers.interrupted(tmp_path):
        state.take(line.kind, "", line.body)
    assert state.eta() == "at most 9 trials left, about 3 min 00 s, then verification"


def test_an_undecided_verdict_is_called_so(tmp_path):
    stream = io.StringIO()
    play(ledgers.undecided(tmp_path), stderr=stream)
    assert "undecided: 1.30x [0.90x, 1.90x]" in stream.getvalue()
    assert "accepted" not in stream.getvalue()


def test_a_terminal_gets_a_table_and_keeps_its_cursor(tmp_path):
    stream = Terminal()
    play(ledgers.accepted(tmp_path), stderr=stream)
    text = stream.getvalue()
    assert "\x1b[?25l" not in text and "\x1b[?1049h" not in text
    last = text.rsplit("\x1b[J", 1)[-1]
    assert last.endswith("\n") and "accepted: 1.50x [1.46x, 1.54x]" in last


@pytest.mark.parametrize("terminal", [False, True])
def test_escape_sequences_of_others_do_not_arrive(tmp_path, terminal):
    stream = Terminal() if terminal else io.StringIO()
    play(ledgers.malicious(tmp_path), stderr=stream)
    assert "\x1b[31m" not in stream.getvalue() and "\u202e" not in stream.getvalue()


def test_ndjson_one_object_per_event(tmp_path):
    stream = io.StringIO()
    lines = ledgers.accepted(tmp_path)
    play(lines, json_lines=True, stdout=stream)
    values = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert [v["event"] for v in values] == [line.kind for line in lines]
    assert all(v["schema"] == 1 for v in values)


def test_stages_and_warnings_outside_a_run_are_lines():
    stream = Terminal()
    sink = event_sink(stderr=stream)
    sink(Event("stage", "A/A run 1 of 4"))
    sink(Event("warning", "uncommitted changes"))
    assert stream.getvalue() == "... A/A run 1 of 4\nwarning: uncommitted changes\n"


def test_quiet_is_quiet():
    stream = io.StringIO()
    event_sink(quiet=True, stderr=stream, stdout=stream)(Event("stage", "x"))
    assert stream.getvalue() == ""


def test_a_resumed_run_without_its_beginning_can_be_drawn(tmp_path):
    stream = Terminal()
    lines = [line for line in ledgers.accepted(tmp_path) if line.kind != "run-started"]
    sink = event_sink(stderr=stream)
    sink(Event("run-resumed", body={"reason": "killed"}))
    for line in lines:
        sink(Event(line.kind, body=line.body))
    assert "ok 0.500 s per step" in stream.getvalue()
