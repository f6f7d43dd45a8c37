"""One key of a configuration file: set in place, nothing else moves."""

from __future__ import annotations

import difflib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.contract.configfile import get_key, set_key
from infrarsi.errors import UsageError

JSON = '{\n  "train" : { "batch": 4, "name": "a \\" }", "list": [1, {"x": 2}] },\n\t"lr":1e-3 }\n'
TOML = '# top\n[train]\nbatch = 4  # rows\nname = "a"\n\n[[stage]]\nlr = 0.5\n'
YAML = (
    "# top\ntrain:\n  batch: 4   # rows\n  note: |\n    batch: 7\n  name: 'a # b'\n  amp: no\nother:\n  batch: 9\n"
    "lr: 1e-3\nlist: [1]\n"
)
PYTHON = (
    "# é\nbatch = 4  # rows\nlr: float = 1e-3\nclass Train:\n    rows = 2 * 3\n    amp: bool = False\n"
    "cfg = {'é': 1, 'depth': 12}\nmodel = dict(width=64)\nlayers = [1]\n"
)

TABLE = [
    (JSON, "c.json", "train.batch", 4, 8),
    (JSON, "c.json", "train.name", 'a " }', "b"),
    (JSON, "c.json", "train.list.1.x", 2, 3),
    (JSON, "c.json", "lr", 1e-3, 0.5),
    (TOML, "c.toml", "train.batch", 4, 8),
    (TOML, "c.toml", "train.name", "a", "b c"),
    (TOML, "c.toml", "stage.0.lr", 0.5, 1.5),
    (YAML, "c.yaml", "train.batch", 4, 8),
    (YAML, "c.yml", "train.name", "a # b", "x: y"),
    (YAML, "c.yaml", "train.amp", False, True),
    (YAML, "c.yaml", "other.batch", 9, 10),
    (YAML, "c.yaml", "lr", 1e-3, 1e-05),
    (PYTHON, "c.py", "batch", 4, 8),
    (PYTHON, "c.py", "lr", 1e-3, 0.25),
    (PYTHON, "c.py", "Train.amp", False, True),
    (PYTHON, "c.py", "cfg.depth", 12, 24),
    (PYTHON, "c.py", "model.width", 64, 128),
]


@pytest.mark.parametrize(("text", "path", "key", "old", "new"), TABLE)
def test_one_line_changes(text, path, key, old, new):
    assert get_key(text, path, key) == old
    changed = set_key(text, path, key, new)
    assert get_key(changed, path, key) == new
    lines = [
        d for d in difflib.ndiff(text.splitlines(keepends=True), changed.splitlines(keepends=True)) if d[0] in "+-"
    ]
    assert len(lines) == 2
    assert set_key(changed, path, key, old) == text or path.endswith(("py", "yml", "json", "yaml"))


@pytest.mark.parametrize(
    ("text", "path", "key"),
    [
        (JSON, "c.json", "train"),
        (JSON, "c.json", "absent"),
        (JSON, "c.json", "lr.deeper"),
        (JSON, "c.json", "train.list.5"),
        (TOML, "c.toml", "train"),
        (TOML, "c.toml", "absent.deep"),
        (YAML, "c.yaml", "train"),
        (YAML, "c.yaml", "batch"),
        (YAML, "c.yaml", "train.note"),
        (YAML, "c.yaml", "list"),
        (PYTHON, "c.py", "absent"),
        (PYTHON, "c.py", "layers"),
        ("{", "c.json", "a"),
        ("a = ", "c.toml", "a"),
        ("a = (", "c.py", "a"),
        ("a=1", "c.ini", "a"),
    ],
)
def test_what_is_not_a_plain_value_is_refused(text, path, key):
    with pytest.raises(UsageError):
        set_key(text, path, key, 1)


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda k: "." not in k), st.integers() | st.text() | st.booleans(), min_size=1
    ),
    st.integers() | st.booleans() | st.text(),
    st.sampled_from([None, 1, "\t"]),
)
def test_json_is_set_as_a_json_reader_sees_it(document, value, indent):
    key = next(reversed(document))
    changed = set_key(json.dumps({"a": document}, indent=indent), "c.json", f"a.{key}", value)
    assert json.loads(changed) == {"a": {**document, key: value}}
