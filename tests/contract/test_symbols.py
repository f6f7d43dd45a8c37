"""What a symbol lock holds: every way to make a locked name mean something else, in its file or from another (R-A1)."""

import pytest

from infrarsi.contract.scope import check_changes, lock_digests
from infrarsi.contract.symbols import parse_source, symbol_digest, symbols_of
from infrarsi.records import Change, Scope

SOURCE = b'''import torch
from torch import nn

BLOCK = 2 * 64
device = "cpu"
data = load()


def get_batch(split, size=8):
    """Rows."""
    return data[split][:BLOCK].to(device)


class Mixin:
    pass


class GPT(nn.Module):
    """The model."""

    width = 4

    def __init__(self):
        self.wte = None

    def forward(self, x):
        return x * 2

    class Inner:
        def deep(self):
            return 1


if torch.cuda.is_available():
    async def fetch(x):
        return x
else:
    async def fetch(x):
        return None

try:
    import fast
except ImportError:
    def fast(x):
        return x
'''
LOCKED = tuple(f"train.py::{name}" for name in ("get_batch", "GPT.forward", "GPT.Inner.deep", "fetch", "fast"))
SCOPE = Scope(("*.py",), LOCKED)
WHOLE = b"    return data[split][:BLOCK].to(device)\n"
DEF = SOURCE[SOURCE.index(b"def get_batch") : SOURCE.index(b"\n\nclass Mixin")]


class Tree(dict):
    def read(self, path):
        return self.get(path)

    def paths(self):
        return self.keys()


def refused(after, path="train.py", before=None):
    base = Tree({"train.py": SOURCE, **({path: before} if before is not None else {})})
    locked = lock_digests(SCOPE, tuple(base), base)
    assert len(locked) == 5
    status = "M" if path in base else "A"
    change = Change(path, "100644" if status == "M" else "000000", "100644", "0" * 40, "1" * 40, status)
    return [v.message for v in check_changes(SCOPE, locked, [change], base, Tree({**base, path: after}))]


def wrapped(header):
    """The locked function under another condition, its own text untouched."""
    inner = b"".join(b"    " + line + b"\n" if line else b"\n" for line in DEF.split(b"\n"))
    return SOURCE.replace(DEF, header + inner)


ATTACKS = {
    "guarded away": wrapped(b"if False:\n"),
    "guarded by a loop": wrapped(b"while data is None:\n"),
    "moved into a function": wrapped(b"def outer():\n"),
    "walrus in a condition": SOURCE + b"if (get_batch := cheat):\n    pass\n",
    "walrus in a default": SOURCE + b"def f(x=(get_batch := cheat)):\n    pass\n",
    "walrus in a decorator": SOURCE + b"@(get_batch := cheat)\ndef f():\n    pass\n",
    "walrus in a base": SOURCE + b"class X((get_batch := cheat)):\n    pass\n",
    "walrus in a while": SOURCE + b"while (get_batch := cheat) is None:\n    pass\n",
    "bound by match": SOURCE + b"match cheat:\n    case get_batch:\n        pass\n",
    "bound by match star": SOURCE + b"match cheat:\n    case [*get_batch]:\n        pass\n",
    "bound by except": SOURCE + b"try:\n    f()\nexcept E as get_batch:\n    pass\n",
    "bound by with": SOURCE + b"with f() as get_batch:\n    pass\n",
    "global in a class": SOURCE + b"class A:\n    global get_batch\n    get_batch = cheat\n",
    "global in a nested function": SOURCE + b"def a():\n  def b():\n    global get_batch\n    get_batch = 1\n",
    "setattr on a module": SOURCE + b"setattr(me, 'get_batch', cheat)\n",
    "through a dictionary": SOURCE + b"me.__dict__['get_batch'] = cheat\n",
    "through globals": SOURCE + b"globals()['get_batch'] = cheat\n",
    "through update": SOURCE + b"globals().update(get_batch=cheat)\n",
    "its constant": SOURCE.replace(b"BLOCK = 2 * 64", b"BLOCK = 2 * 32"),
    "its constant, computed": SOURCE.replace(b"BLOCK = 2 * 64", b"BLOCK = half()"),
    "its constant, again": SOURCE + b"BLOCK //= 2\n",
    "its default": SOURCE.replace(b"size=8", b"size=4"),
    "its docstring": SOURCE.replace(b"Rows.", b"Tows."),
    "blanks in its text": SOURCE.replace(b'"""Rows."""', b'"""Rows.  \n    """'),
    "the class rebound": SOURCE + b"GPT = Mixin\n",
    "the class defined again": SOURCE + b"class GPT(Mixin):\n    pass\n",
    "the class decorated": SOURCE.replace(b"class GPT", b"@cheat\nclass GPT"),
    "the class's metaclass": SOURCE.replace(b"GPT(nn.Module)", b"GPT(nn.Module, metaclass=M)"),
    "the class's bases": SOURCE.replace(b"GPT(nn.Module)", b"GPT(Mixin, nn.Module)"),
    "around the method": SOURCE.replace(b"    width = 4", b"    def __call__(self, x):\n        return x"),
    "attribute access": SOURCE.replace(b"    width = 4", b"    def __getattribute__(self, n):\n        return f"),
    "on the instance": SOURCE.replace(b"self.wte = None", b"self.forward = cheat"),
    "on an alias": SOURCE + b"G = GPT\nG.forward = cheat\n",
    "on type()": SOURCE + b"type(m).forward = cheat\n",
    "as a loop target": SOURCE + b"for GPT.forward in [cheat]:\n    pass\n",
    "in the class body again": SOURCE.replace(b"    class Inner", b"    forward = cheat\n\n    class Inner"),
    "in the inner class": SOURCE.replace(b"            return 1", b"            return 2"),
    "the inner class rebound": SOURCE.replace(b"    width = 4", b"    Inner = Mixin"),
    "one branch": SOURCE.replace(b"return None", b"return 0"),
    "branches swapped": SOURCE.replace(b"if torch.cuda", b"if not torch.cuda"),
    "the import of try": SOURCE.replace(b"    import fast", b"    import slow as fast"),
    "carriage returns": b"#\r" * 8 + SOURCE.replace(WHOLE, b"    return 1\n") + b'X = """\n' + DEF + b'"""\n',
    "deleted text": b"",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_locked_symbol_cannot_come_to_mean_something_else(name):
    after = ATTACKS[name]
    assert after != SOURCE
    assert any("is locked" in message for message in refused(after)), name


@pytest.mark.parametrize(
    "after",
    [
        SOURCE.replace(b"width = 4", b"width = 8"),
        SOURCE.replace(b"self.wte = None", b"self.wte = 1"),
        SOURCE + b"def f(get_batch):\n    forward = get_batch\n    return forward\n",
        SOURCE + b"m = GPT()\nm.width = 3\nprint(get_batch('x'))\n",
        SOURCE + b"def f(self):\n    self.get_batch = 1\n",
        SOURCE.replace(b"import torch\n", b"import torch\nimport math\n"),
        SOURCE.replace(b'device = "cpu"', b'device = "cpu"  # here'),
        SOURCE.replace(b"\n", b"\r\n"),
    ],
)
def test_what_does_not_touch_it_passes(after):
    """R-A6; the last but two is a comment beside a constant, which does count: its line is part of the lock."""
    found = refused(after)
    assert found == [] or (b"# here" in after and "get_batch" in found[0])


@pytest.mark.parametrize(
    "after",
    [
        b"import train\ntrain.get_batch = cheat\n",
        b"from train import GPT\nGPT.forward = cheat\n",
        b"import train as t\nsetattr(t.GPT, 'forward', cheat)\n",
        b"import train\nvars(train)['get_batch'] = cheat\n",
        b"def f(model):\n    model.forward = cheat\n",
        b"import train\ndel train.get_batch\n",
    ],
)
def test_another_file_cannot_set_it_either(after):
    (message,) = refused(after, "other.py")
    assert "other.py sets it" in message
    assert refused(after, "other.py", before=after + b"x = 1\n") == [], "what was there may stay"


def test_a_symbol_that_a_glob_locks_may_not_appear_elsewhere():
    scope = Scope(("*.py",), ("*.py::get_batch",))
    base = Tree({"train.py": SOURCE})
    locked = lock_digests(scope, tuple(base), base)
    after = Tree({**base, "second.py": b"def get_batch():\n    pass\n"})
    change = Change("second.py", "000000", "100644", "0" * 40, "1" * 40, "A")
    (violation,) = check_changes(scope, locked, [change], base, after)
    assert "defines get_batch anew" in violation.message


def test_encodings_are_read_as_python_reads_them():
    hidden = b"# coding: utf-7\ndef f():\n    return 1\n# +AAo-f = 2\n"
    text, _ = parse_source(hidden)
    assert "\nf = 2" in text, "what utf-8 shows as a comment is code"
    assert symbol_digest("a.py", "f", hidden) != symbol_digest("a.py", "f", hidden.replace(b"# +AAo-f = 2\n", b""))
    marked = b"\xef\xbb\xbf" + SOURCE
    assert symbol_digest("t", "get_batch", marked).sha256 == symbol_digest("t", "get_batch", SOURCE).sha256
    latin = "# coding: latin-1\ndef f():\n    return 'é'\n".encode("latin-1")
    assert symbol_digest("a.py", "f", latin) != symbol_digest("a.py", "f", latin.replace(b"\xe9", b"\xe8"))


@pytest.mark.parametrize(
    "source",
    [b"x = " + b"(" * 5000 + b")" * 5000, b"x = " + b"not " * 50000 + b"1", b"\0", b"\xff", b"# coding: nonsense\n",
     b"# coding: hex\n00", b"x = " + b"-" * 200000 + b"1"],
)  # fmt: skip
def test_what_python_cannot_read_is_no_crash(source):
    assert symbols_of(source) == ()
    with pytest.raises(SyntaxError):
        parse_source(source)
