"""Ring 1 on sources: what an edit adds, resolved through its imports; honest edits pass."""

from pathlib import Path

import pytest

import infrarsi.demo
from infrarsi.contract.static import check_source

BASE = b"""import os
import time
import torch

def train(model, optimizer):
    started = time.time()
    for step in range(10):
        loss = model()
        loss.backward()
        optimizer.step()
    print(time.time() - started)
"""


def check(added, before=BASE):
    violations = check_source("pkg/train.py", before, (before or b"") + added.encode())
    assert all(v.ring == "scope" and v.message.startswith("pkg/train.py:") for v in violations)
    return [v.check for v in violations]


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("x = time.perf_counter()", "clock"),
        ("from time import perf_counter as pc\n", "clock"),
        ("def f():\n    import time as t\n    t.sleep(1)\n", "clock"),
        ("import datetime\n", "clock"),
        ("e = torch.cuda.Event(enable_timing=True)\n", "clock"),
        ("from torch.cuda import Event\n", "clock"),
        ("import _infrarsi_probe\n", "probe"),
        ("x = 'INFRARSI_PLAN'\n", "probe"),
        ("x = f'INFRARSI_{1}'\n", "probe"),
        ("import sitecustomize\n", "probe"),
        ("import sys\nf = sys._getframe(1)\n", "frames"),
        ("import inspect\ninspect.stack()\n", "frames"),
        ("x = (lambda: 0).__globals__\n", "objects"),
        ("import gc\ngc.get_objects()\n", "objects"),
        ("from gc import get_referrers\n", "objects"),
        ("import ctypes\n", "native"),
        ("from torch.utils.cpp_extension import load_inline\n", "native"),
        ("x = open('/proc/self/environ').read()\n", "process"),
        ("x = dict(os.environ)\n", "environment"),
        ("x = os.environ['TORCHELASTIC_RUN_ID']\n", "environment"),
        ("name = 'A'\nx = os.environ[name]\n", "environment"),
        ("os.environ['PYTHONPATH'] = '.'\n", "environment"),
        ("torch.optim.AdamW.step = None\n", "monkey-patch"),
        ("torch.Tensor.backward, x = None, 1\n", "monkey-patch"),
        ("setattr(torch.nn.Module, '__call__', None)\n", "monkey-patch"),
        ("del torch.Tensor.backward\n", "monkey-patch"),
        ("from torch.optim import AdamW as A\nA.step = None\n", "monkey-patch"),
        ("def f(o):\n    type(o).step = None\n", "monkey-patch"),
        ("def f(o):\n    o.__class__.step = None\n", "monkey-patch"),
        ("def f(loss):\n    loss.backward = None\n", "monkey-patch"),
        ("torch.__dict__['compile'] = None\n", "monkey-patch"),
        ("time.time = lambda: 0\n", "monkey-patch"),
        ("os._exit(0)\n", "process"),
        ("import subprocess\n", "process"),
        ("import atexit\n", "process"),
        ("import socket\n", "network"),
        ("import urllib.request\n", "network"),
        ("import importlib\n", "imports"),
        ("m = __import__('time')\n", "imports"),
        ("import sys\nsys.modules['x'] = None\n", "imports"),
        ("import sys\nsys.path.insert(0, '.')\n", "imports"),
        ("eval('1')\n", "dynamic"),
        ("exec('x = 1')\n", "dynamic"),
        ("x = getattr(torch, name)\n", "dynamic"),
        ("x = getattr(torch, 'cu' + 'da').Event()\n", "clock"),
        ("x = getattr(os, '_exit')\n", "process"),
        ("torch.cuda.reset_peak_memory_stats()\n", "memory"),
        ("import resource\n", "memory"),
        ("from torch.optim.optimizer import register_optimizer_step_post_hook\n", "probe"),
        ("def f(o):\n    o._optimizer_step_pre_hooks.clear()\n", "probe"),
    ],
)
def test_what_reaches_out_of_the_training_is_refused(added, expected):
    """R-A1, R-A2."""
    assert expected in check(added)
    assert expected in check("import os, time, torch\n" + added, before=None)


@pytest.mark.parametrize(
    "added",
    [
        "torch.backends.cuda.matmul.allow_tf32 = True\n",
        "torch._inductor.config.coordinate_descent_tuning = True\n",
        "model = torch.compile(torch.nn.Linear(1, 1))\n",
        "import gc\ngc.disable()\ngc.collect()\n",
        "rank = int(os.environ.get('RANK', 0))\nos.environ['OMP_NUM_THREADS'] = '2'\nx = os.getenv('HOME')\n",
        "import inspect\nfused = 'fused' in inspect.signature(torch.optim.AdamW).parameters\n",
        "import threading, queue\n",
        "from .time import thing\nfrom . import socket\n",
        "class A:\n    def f(self):\n        self.backward = None\n        self.step = 1\n",
        "def f(time):\n    return time.time()\n",
        "x = getattr(torch, 'compile')\n",
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    pass\n",
        "from torch.nn.parallel import DistributedDataParallel as DDP\n",
        "def setup(model):\n    model.forward = torch.compile(model.forward)\n",
        "text = 'a probe of time'\n",
    ],
)
def test_honest_edits_pass(added):
    """R-A6."""
    assert check(added) == []


def test_what_was_there_may_stay_and_move():
    moved = BASE.replace(b"    started = time.time()\n", b"    model.train()\n    started = time.time()\n")
    assert check_source("a.py", BASE, moved) == ()
    assert check_source("a.py", BASE, BASE.replace(b"print(time.time() - started)", b"print('done')")) == ()


def test_the_added_occurrence_is_the_one_that_is_named():
    after = BASE.replace(b"        loss.backward()\n", b"        loss.backward()\n        t = time.time()\n")
    (violation,) = check_source("a.py", BASE, after)
    assert violation.message.startswith("a.py:10: time.time reads a clock")


def test_unreadable_python_is_refused_and_other_files_are_not_read():
    assert [v.check for v in check_source("a.py", BASE, b"def (:\n")] == ["syntax"]
    assert check_source("a.json", b"{}", b'{"import time": 1}') == ()
    assert [v.check for v in check_source("a.py", b"def (:\n", b"import time\n")] == ["clock"]


def test_the_demo_trainers_need_nothing_but_their_own_clock():
    """R-A6: real trainers, as if all of them had been added."""
    folder = Path(infrarsi.demo.__file__).parent / "trainers"
    for path in folder.rglob("*.py"):
        assert {v.check for v in check_source(path.name, None, path.read_bytes())} <= {"clock"}, path
