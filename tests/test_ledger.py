"""The ledger: replay(append(x)) = x, torn writes, tampering."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.ledger import Ledger, LedgerError, parse

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(st.text(), values, max_size=4)


@given(st.lists(st.tuples(st.text(min_size=1), bodies), max_size=6))
def test_replay_of_append_is_identity(tmp_path_factory, events):
    ledger = Ledger(tmp_path_factory.mktemp("l") / "ledger.jsonl")
    written = [ledger.append(kind, body) for kind, body in events]
    assert list(ledger.replay()) == written
    assert [(line.kind, line.body) for line in written] == [(k, json.loads(json.dumps(b))) for k, b in events]


def test_a_torn_last_line_is_cut_and_the_chain_goes_on(tmp_path):
    """R-E2."""
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append("a", {"x": 1})
    with path.open("ab") as file:
        file.write(b'{"seq":1,"kind":"b"')
    assert [line.kind for line in Ledger(path).replay()] == ["a"]
    Ledger(path).append("c", {"x": 2})
    assert [line.kind for line in Ledger(path).replay()] == ["a", "c"]


@pytest.mark.parametrize("change", ["edit", "drop", "swap"])
def test_a_changed_chain_is_refused(tmp_path, change):
    """R-I2: evidence with one changed sample."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for number in range(4):
        ledger.append("t", {"n": number})
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[1] = lines[1].replace(b'"n":1', b'"n":9')
    elif change == "drop":
        del lines[1]
    else:
        lines[1], lines[2] = lines[2], lines[1]
    with pytest.raises(LedgerError, match="line 2"):
        parse(b"".join(lines))
