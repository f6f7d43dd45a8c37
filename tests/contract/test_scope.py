"""Ring 1 on trees: every way to change what the contract does not let change, as raw modes and blobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi.contract.scope import check_changes, is_editable, lock_digests
from infrarsi.contract.symbols import symbol_digest
from infrarsi.errors import ContractError
from infrarsi.records import Change, Scope

TRAIN = b"""import torch
LR = 6e-4

def get_batch(split):
    return data[split]

class GPT:
    def forward(self, x):
        return x

def main():
    get_batch("train")
"""
SCOPE = Scope(("*.py", "config/", "!secret.py"), ("data/**", "tests/", "train.py::get_batch", "train.py::GPT.forward"))


class Tree(dict):
    """A tree in memory: path to bytes."""

    def read(self, path):
        return self.get(path)

    def paths(self):
        return self.keys()


def change(path, old="100644", new="100644"):
    status = "A" if old == "000000" else "D" if new == "000000" else "M"
    return Change(path, old, new, "0" * 40, "1" * 40, status)


def verdicts(after, *changes, scope=SCOPE, before=None):
    before = before if before is not None else Tree({"train.py": TRAIN})
    locked = lock_digests(scope, tuple(before), before)
    return check_changes(scope, locked, changes, before, Tree({**before, **after}))


def names(violations):
    assert all(v.ring == "scope" and v.message for v in violations)
    return [v.check for v in violations]


def test_an_edit_in_scope_passes():
    after = {"train.py": TRAIN.replace(b"6e-4", b"3e-4"), "config/a.json": b"{}", "lib/new.py": b"x = 1\n"}
    assert verdicts(after, change("train.py"), change("config/a.json"), change("lib/new.py", "000000")) == ()


@pytest.mark.parametrize("path", ["README.md", "secret.py", "data/x.py", "tests/test_a.py", "deep/tests/a.py"])
def test_out_of_scope_and_locked_paths_are_refused(path):
    """R-A1."""
    (violation,) = verdicts({path: b"x = 1\n"}, change(path))
    assert violation.check in ("out-of-scope", "locked")
    assert path in violation.message
    assert not is_editable(SCOPE, path)


@pytest.mark.parametrize(
    "path",
    [
        ".gitattributes",
        "lib/.gitattributes",
        ".GitModules",
        "sitecustomize.py",
        "lib/usercustomize.py",
        "sitecustomize/__init__.py",
        "conftest.py",
        "lib/x.pth",
        "lib/fast.so",
        "__pycache__/train.cpython-311.pyc",
        "infrarsi.toml",
        "infrarsi.lock",
        ".git/config",
        "../train.py",
    ],
)
def test_names_with_powers_are_refused_whatever_the_globs_say(path):
    """R-A1."""
    scope = Scope(("**", "*"))
    assert names(verdicts({path: b"x"}, change(path, "000000"), scope=scope)) == ["special-file"]
    assert not is_editable(scope, path)


@pytest.mark.parametrize(
    ("old", "new"),
    [("000000", "120000"), ("100644", "120000"), ("000000", "160000"), ("100644", "100755"), ("000000", "100755")],
)
def test_links_submodules_and_modes_are_refused(old, new):
    """R-A1: also where the target is harmless; a link can be moved later."""
    assert names(verdicts({"lib/x.py": b"train.py"}, change("lib/x.py", old, new))) == ["mode"]


def test_a_link_may_not_become_a_file():
    assert names(verdicts({"lib/x.py": b"x"}, change("lib/x.py", "120000", "100644"))) == ["mode"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.replace(b"data[split]", b"cache[split]"),
        lambda s: s.replace(b"def get_batch", b"def get_other"),
        lambda s: s + b"\nget_batch = cached\n",
        lambda s: s + b"\nfrom fast import get_batch\n",
        lambda s: s + b"\nfrom fast import *\n",
        lambda s: s + b"\nif True:\n    def get_batch(split):\n        return None\n",
        lambda s: s + b"\ndef patch():\n    global get_batch\n    get_batch = None\n",
        lambda s: s + b"\n(get_batch := None)\n",
        lambda s: s + b"\nfor get_batch in [None]:\n    pass\n",
        lambda s: s + b"\nGPT.forward = None\n",
        lambda s: s.replace(b"        return x", b"        return x * 2"),
        lambda s: s.replace(b"def get_batch", b"@cache\ndef get_batch"),
        lambda s: b"not python (",
    ],
)
def test_a_locked_symbol_stays_what_it_is_bound_to(edit):
    """R-A1: path::symbol locks, also against a second binding."""
    found = names(verdicts({"train.py": edit(TRAIN)}, change("train.py")))
    assert "locked-symbol" in found


def test_code_around_a_locked_symbol_may_move_and_reindent():
    after = TRAIN.replace(b"import torch", b"import torch\nimport math\n\n\n").replace(
        b'get_batch("train")', b'get_batch("val")'
    )
    crlf = after.replace(b"\n", b"\r\n")
    for source in (after, crlf):
        assert verdicts({"train.py": source}, change("train.py")) == ()


def test_a_deleted_file_takes_its_locked_symbol_with_it():
    before = Tree({"train.py": TRAIN, "old.py": b"x = 1\n"})
    locked = lock_digests(SCOPE, tuple(before), before)
    gone = [change("train.py", new="000000"), change("old.py", new="000000")]
    found = check_changes(SCOPE, locked, gone, before, Tree())
    assert names(found) == ["locked-symbol", "locked-symbol"]


def test_a_module_that_shadows_a_library_is_refused():
    assert names(verdicts({"torch.py": b""}, change("torch.py", "000000"))) == ["shadow"]
    assert names(verdicts({"random/__init__.py": b""}, change("random/__init__.py", "000000"))) == ["shadow"]
    inside = {"lib/__init__.py": b"", "lib/random.py": b""}
    assert verdicts(inside, change("lib/random.py", "000000")) == ()


def test_binary_content_is_refused():
    assert names(verdicts({"lib/x.py": b"a\0b"}, change("lib/x.py", "000000"))) == ["binary"]


def test_caps_on_files_and_lines():
    """R-F3."""
    scope = Scope(("*.py",), max_files=1, max_lines=3)
    after = {"a.py": b"1\n2\n3\n", "b.py": b"1\n"}
    found = verdicts(after, change("a.py", "000000"), change("b.py", "000000"), scope=scope, before=Tree())
    assert names(found) == ["max-files", "max-lines"]
    one = Scope(("*.py",), max_lines=2)
    before = Tree({"a.py": b"1\n2\n3\n"})
    assert verdicts({"a.py": b"1\n9\n3\n"}, change("a.py"), scope=one, before=before) == ()


def test_lock_digests_cover_paths_and_symbols():
    before = Tree({"train.py": TRAIN, "data/a.txt": b"x", "tests/test_a.py": b"", "README.md": b""})
    digests = lock_digests(SCOPE, tuple(before), before)
    assert [d.name for d in digests] == [
        "data/a.txt",
        "tests/test_a.py",
        "train.py::GPT.forward",
        "train.py::get_batch",
    ]


def test_a_symbol_lock_that_holds_nothing_is_an_error():
    with pytest.raises(ContractError) as caught:
        lock_digests(Scope(("*.py",), ("train.py::get_batches",)), ("train.py",), Tree({"train.py": TRAIN}))
    assert caught.value.hint == "did you mean train.py::get_batch?"


def test_constants_can_be_locked():
    locked = symbol_digest("train.py", "LR", TRAIN)
    assert locked is not None
    assert symbol_digest("train.py", "LR", TRAIN.replace(b"6e-4", b"6e-3")) != locked
    assert symbol_digest("train.py", "LR", TRAIN + b"\ndef f():\n    LR = 1\n") == locked


@given(st.text(st.sampled_from("ab/.py*"), min_size=1, max_size=12))
def test_what_is_not_editable_is_always_refused(path):
    refused = bool(verdicts({path: b"x = 1\n"}, change(path), scope=Scope(("a*", "*.py"), ("b/",)), before=Tree()))
    assert refused == (not is_editable(Scope(("a*", "*.py"), ("b/",)), path))


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".env.local",
        "evil.dist-info/entry_points.txt",
        "evil.egg-info/PKG-INFO",
        "python311._pth",
        "lib/Sitecustomize.PY",
        "sitecustom\u0131ze.py".replace("\u0131", "i\u200b"),
        "\uff53itecustomize.py",
        ".g\u200cit/config",
        "GIT~1/config",
        "x.dylib",
        "pkg/.pth",
    ],
)
def test_names_with_powers_are_seen_through_case_form_and_invisible_letters(path):
    """R-A1."""
    assert names(verdicts({path: b"x"}, change(path, "000000"), scope=Scope(("**",)))) == ["special-file"]


@pytest.mark.parametrize(
    "path",
    [
        *("m\u043edel.py", "lib/new\n.py", "a\\b.py", " train.py", "lib/x.py ", "x.", "-x.py", "a:b.py", "TRAIN.py"),
        "Train.py/x.py",
    ],
)
def test_new_names_that_read_as_others_are_refused(path):
    """R-A1: look-alikes, control characters, case only."""
    assert names(verdicts({path: b"x = 1\n"}, change(path, "000000"), scope=Scope(("**",)))) == ["odd-name"]
    before = Tree({path: b"x\n"})
    assert verdicts({path: b"x = 1\n"}, change(path), scope=Scope(("**",)), before=before) == (), "it was there before"


@pytest.mark.parametrize(
    ("path", "also", "entry", "installed", "hidden"),
    [
        ("numpy/__init__.py", {}, "train.py", (), "numpy"),
        ("sympy.py", {}, "train.py", (), "sympy"),
        ("src/torch.py", {}, "train.py", (), "torch"),
        ("einx.py", {}, "train.py", ("einx",), "einx"),
        ("scripts/random.py", {"scripts/__init__.py": b""}, "scripts/train.py", (), "random"),
        ("scripts/inner/random.py", {"scripts/inner/__init__.py": b""}, "scripts/train.py", (), ""),
        ("lib/random.py", {"lib/__init__.py": b""}, "scripts/train.py", (), ""),
        ("fast_attention.py", {}, "train.py", ("torch", "numpy"), ""),
        ("mine/new.py", {"mine/__init__.py": b""}, "train.py", ("mine",), ""),
    ],
)
def test_modules_that_hide_others(path, also, entry, installed, hidden):
    """R-A1: from every folder that is on the import path, for every package that is installed."""
    before = Tree({"train.py": TRAIN, **also})
    after = Tree({**before, path: b"x = 1\n"})
    locked = lock_digests(Scope(("*.py",)), tuple(before), before)
    found = check_changes(
        Scope(("*.py",)), locked, [change(path, "000000")], before, after, entry=entry, installed=installed
    )
    assert [v.observed for v in found if v.check == "shadow"] == ([hidden] if hidden else [])


@pytest.mark.parametrize(
    ("before", "after", "check"),
    [
        (TRAIN, b"# coding: utf-7\n" + TRAIN, "encoding"),
        (TRAIN, b"\xef\xbb\xbf" + TRAIN, "encoding"),
        (TRAIN, b"# vim: set fileencoding=latin-1 :\n" + TRAIN, "encoding"),
        (TRAIN, b"# coding: rot13\n" + TRAIN, "encoding"),
        (TRAIN, TRAIN + b"x = '" + b"a" * 2**20 + b"'\n", "size"),
        (TRAIN, TRAIN + b"# \0\n", "binary"),
    ],
)
def test_bytes_that_do_not_read_as_they_run(before, after, check):
    """R-A1."""
    assert check in names(verdicts({"train.py": after}, change("train.py"), before=Tree({"train.py": before})))


def test_a_declared_encoding_may_stay():
    latin = "# coding: latin-1\nx = 'é'\n".encode("latin-1")
    after = {"lib/a.py": latin + b"y = 1\n"}
    before = Tree({"train.py": TRAIN, "lib/a.py": latin})
    assert verdicts(after, change("lib/a.py"), before=before) == ()


def test_a_deep_symbol_does_not_end_the_tool():
    deep = TRAIN + b"x = " + b"-" * 100000 + b"1\n"
    assert "locked-symbol" in names(verdicts({"train.py": deep}, change("train.py"), scope=SCOPE))
