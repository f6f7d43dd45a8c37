"""Ring 1 against detours: the same reach under other names, through other modules, in pieces; and honest neighbours."""

import textwrap

import pytest

from infrarsi.contract.static import check_source

BASE = b"""import gc
import os
import sys
import time
import torch
from contextlib import nullcontext

def train(model, optimizer, log):
    t0 = time.time()
    for step in range(10):
        loss = model()
        loss.backward()
        optimizer.step()
        t1 = time.time()
        dt = t1 - t0
        t0 = t1
        print(f"step {step} loss {loss.item()} {dt:.2f}")
        log.info(dt)
    if dt > 100:
        print("slow")
    return time.time()
"""


def added(code, before=BASE):
    return [v.check for v in check_source("train.py", before, before + textwrap.dedent(code).encode())]


def edited(old, new):
    assert old.encode() in BASE
    return check_source("train.py", BASE, BASE.replace(old.encode(), new.encode(), 1))


@pytest.mark.parametrize(
    ("code", "check"),
    [
        # another name for a module
        ("o = os\no._exit(0)\n", "process"),
        ("def f(m=os):\n    m._exit(0)\n", "process"),
        ("f = lambda m=sys: m.modules\n", "imports"),
        ("t: object = time\n", "clock"),
        ("a, b = os, 1\na.kill(1, 9)\n", "process"),
        ("for o in (os,):\n    o._exit(0)\n", "process"),
        ("(o := sys).settrace(None)\n", "frames"),
        ("x = [os][0]\n", "dynamic"),
        ("x = {'o': sys}\n", "dynamic"),
        ("def f(x=torch):\n    pass\n", "dynamic"),
        ("g = gc\ng.get_objects()\n", "objects"),
        ("A = torch.optim.AdamW\nA.step = None\n", "monkey-patch"),
        ("T = torch.Tensor\nB = T\nB.backward = None\n", "monkey-patch"),
        ("def f(cls=torch.Tensor):\n    cls.backward = None\n", "monkey-patch"),
        # through a module that imported it
        ("torch.os._exit(0)\n", "process"),
        ("torch.sys.modules\n", "imports"),
        ("import logging\nlogging.time.perf_counter()\n", "clock"),
        ("import random\nrandom._os.environ\n", "environment"),
        ("from utils import time\n", "clock"),
        ("from .utils import os as o\n", "dynamic"),
        ("import utils\nutils.time.monotonic()\n", "clock"),
        ("import numpy as np\nnp.ctypeslib.ctypes\n", "native"),
        ("torch.builtins.exec('1')\n", "dynamic"),
        # everything of a module
        ("from os import *\n", "dynamic"),
        ("from sys import *\n", "dynamic"),
        ("from time import *\n", "clock"),
        # by text
        ("getattr(f, '__globals__')\n", "objects"),
        ("from operator import attrgetter\nattrgetter('f_back.f_globals')(x)\n", "objects"),
        ("'{0.__globals__}'.format(f)\n", "objects"),
        ("x = 'INFR' 'ARSI_PLAN'\n", "probe"),
        ("x = 'INFR' + 'ARSI_PLAN'\n", "probe"),
        ("x = ''.join(['INFR', 'ARSI'])\n", "probe"),
        ("x = 'ISRARFNI'[::-1]\n", "probe"),
        ("x = '\\x49NFRARSI_PLAN'\n", "probe"),
        ("x = b'INFRARSI_PLAN'\n", "probe"),
        ("x = f\"{'INFR'}{'ARSI'}\"\n", "probe"),
        ("open('//proc/self/environ')\n", "process"),
        ("open('/tmp/../proc/uptime')\n", "process"),
        ("open('../../../proc/uptime')\n", "process"),
        ("import pathlib\npathlib.Path('/', 'proc', 'uptime')\n", "process"),
        ("getattr(x, '__glo' + 'bals__')\n", "objects"),
        ("getattr(x, 'slabolg'[::-1] + y)\n", "dynamic"),
        ("getattr(x, chr(95) + name)\n", "dynamic"),
        ("getattr(x, bytes([95]).decode())\n", "dynamic"),
        ("getattr(torch, 'cuda').Event()\n", "clock"),
        ("import base64\n", "dynamic"),
        ("os.environ.get('TORCHDYNAMO_DISABLE')\n", "environment"),
        # names of the interpreter
        ("__builtins__['exec']('1')\n", "objects"),
        ("print.__self__.exec('1')\n", "objects"),
        ("__loader__.get_data('x')\n", "objects"),
        ("__spec__.loader\n", "objects"),
        ("torch.Tensor.backward.__wrapped__(loss)\n", "probe"),
        ("try:\n    f()\nexcept Exception as e:\n    e.__traceback__.tb_frame\n", "frames"),
        ("g = (x for x in y)\ng.gi_frame\n", "frames"),
        ("sys.exc_info()\n", "frames"),
        ("x.__class__ = Other\n", "monkey-patch"),
        ("f.__code__ = g.__code__\n", "objects"),
        ("f.__defaults__ = (1,)\n", "objects"),
        ("locals()['x'] = 1\n", "dynamic"),
        ("vars()['x'] = 1\n", "dynamic"),
        ("vars(torch)['compile'] = None\n", "dynamic"),
        ("import types\ntypes.FunctionType(c, {})\n", "dynamic"),
        ("import pickle\npickle.loads(x)\n", "dynamic"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)\n", "dynamic"),
        ("torch.load('x', weights_only=False)\n", "dynamic"),
        ("import unittest.mock\n", "monkey-patch"),
        ("[0 for torch.Tensor.backward in [None]]\n", "monkey-patch"),
        ("for torch.Tensor.backward in [None]:\n    pass\n", "monkey-patch"),
        ("with f() as torch.compile:\n    pass\n", "monkey-patch"),
        ("type.__setattr__(torch.Tensor, 'backward', None)\n", "monkey-patch"),
        ("object.__setattr__(loss, 'backward', None)\n", "monkey-patch"),
        ("torch.library.Library('aten', 'IMPL')\n", "monkey-patch"),
        ("from torch.utils._python_dispatch import TorchDispatchMode\n", "monkey-patch"),
        ("def f(optimizer):\n    optimizer.step = lambda: None\n", "monkey-patch"),
        ("def f(optimizer):\n    setattr(optimizer, 'step', None)\n", "monkey-patch"),
        # other clocks, other processes, other modes
        ("import threading\nthreading.Timer(1, f)\n", "clock"),
        ("x = os.stat('f').st_mtime\n", "clock"),
        ("import asyncio\n", "clock"),
        ("import select\n", "clock"),
        ("import triton.testing\n", "clock"),
        ("import multiprocessing as mp\nmp.Process(target=f)\n", "process"),
        ("os.dup2(1, 2)\n", "process"),
        ("os.write(7, b'{}')\n", "process"),
        ("open(7, 'wb')\n", "process"),
        ("os.register_at_fork(before=f)\n", "process"),
        ("os.rename('a', 'b')\n", "files"),
        ("import shutil\nshutil.move('a', 'b')\n", "files"),
        ("os.utime('a')\n", "files"),
        ("if torch.compiler.is_compiling():\n    pass\n", "mode"),
        ("x = torch.are_deterministic_algorithms_enabled()\n", "mode"),
        ("x = sys.gettrace()\n", "mode"),
        # where code hides
        ("@sys.settrace\ndef f():\n    pass\n", "frames"),
        ("class A(sys._getframe(0).f_code):\n    pass\n", "frames"),
        ("x = [os._exit(y) for y in z]\n", "process"),
        ("def f(x=os._exit):\n    pass\n", "process"),
        ("x = f'{os._exit(0)}'\n", "process"),
        ("async def f():\n    async with sys.settrace(g):\n        pass\n", "frames"),
        ("match sys.modules:\n    case _:\n        pass\n", "imports"),
        ("lambda: (yield os._exit(0))\n", "process"),
    ],
)
def test_detours_are_refused(code, check):
    """R-A1, R-A2."""
    assert check in added(code), added(code)


@pytest.mark.parametrize(
    "code",
    [
        "nn = torch.nn\nF = torch.nn.functional\ny = F.relu(x)\n",
        "if hasattr(torch, 'compile') and hasattr(torch.nn.functional, 'x'):\n    pass\n",
        "import scipy.signal\nscipy.signal.butter(1, 2)\ntorch.signal.windows.hann(3)\n",
        "from scipy import signal\n",
        "from . import socket\nfrom .time import thing\n",
        "def f(optimizer):\n    optimizer.step = torch.compile(optimizer.step)\n",
        "class A(torch.nn.Module):\n    def step(self):\n        self.n = 1\n        x = self.__class__.__name__\n",
        "x = getattr(config, name)\ny = getattr(self, f'layer_{i}')\nz = getattr(self, 'bias_' + str(i))\n",
        "import multiprocessing\nworkers = multiprocessing.cpu_count()\n",
        "import pickle\npickle.dump(x, open('x', 'wb'))\n",
        "x = torch.load('ckpt.pt', weights_only=True)\n",
        "path = 'data/proc/train.bin'\ntext = 'process'\n",
        "import types\nmodel.forward = types.MethodType(f, model)\n",
        "for k, v in vars(args).items():\n    print(k, v)\n",
        "torch.multiprocessing.set_sharing_strategy('file_system')\n",
        "ctx = nullcontext() if cpu else torch.amp.autocast('cuda')\n",
        "@torch.library.custom_op('mine::op', mutates_args=())\ndef op(x: torch.Tensor) -> None:\n    return x\n",
        "e = torch.float32\nd = torch.device('cuda')\nA = torch.optim.AdamW\nopt = A(p, fused=True)\n",
        "import inspect\nok = 'fused' in inspect.signature(torch.optim.AdamW).parameters\n",
        "import threading, queue\nthreading.Thread(target=f, daemon=True).start()\n",
        "from torch.utils.checkpoint import checkpoint\nx = checkpoint(f, x, use_reentrant=False)\n",
    ],
)
def test_honest_neighbours_pass(code):
    """R-A6."""
    assert added(code) == []


def test_a_use_may_move_with_its_statement():
    moved = BASE.replace(b"        t1 = time.time()\n", b"").replace(
        b"        loss = model()\n", b"        t1 = time.time()\n        loss = model()\n"
    )
    assert check_source("train.py", BASE, moved) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('print(f"step {step} loss {loss.item()} {dt:.2f}")', 'print(f"step {step} loss {total} {dt:.2f}")'),
        ("t1 = time.time()", "t1 = float(time.time())"),
        ("log.info(dt)", "log.info(dt * 1000)"),
        ("dt = t1 - t0", "dt = t1 - t0 + 0.0"),
        ("    return time.time()\n", "    return\n"),
        ("import time\n", "import math, time\n"),
        ('print("slow")', 'print("very slow")'),
    ],
)
def test_a_statement_may_change_around_its_use(old, new):
    """R-A6: logging that is rewritten stays logging."""
    assert edited(old, new) == ()


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        # one that goes makes no room for another
        ("    return time.time()\n", "    cheat = time.time()\n", 21),
        ("    t0 = time.time()\n    for", "    t0 = 0\n    started = time.time()\n    for", 10),
        # what was measured for a log now decides
        ("        loss = model()\n", "        loss = model() if dt > 1 else old\n", 11),
        ("        optimizer.step()\n", "        if dt > 0.5:\n            optimizer.step()\n", 13),
        ("    if dt > 100:", "    if dt > 1:", 19),
        ("range(10)", "range(int(t0))", 10),
        ("loss = model()", "loss = model(x[: int(dt)])", 11),
        ("loss = model()", "loss = model(x if y else [z for z in w if dt])", 11),
        ("        log.info(dt)\n", "        r = 1 / dt\n        f = r\n        while f > 3:\n            f()\n", 20),
        ("        log.info(dt)\n", "        self.dt = dt\n    def later(self):\n        assert self.dt < 3\n", 20),
        ("        log.info(dt)\n", "        x = dt > 1\n", 18),
    ],
)  # fmt: skip
def test_a_measured_time_may_not_come_to_decide(old, new, line):
    """R-A2."""
    found = edited(old, new)
    assert [v.check for v in found if v.message.startswith(f"train.py:{line}:")], [v.message for v in found]


def test_elapsed_time_of_events_is_a_clock_too():
    before = b"def f(a, b):\n    ms = a.elapsed_time(b)\n    print(ms)\n"
    after = before + b"    if ms > 3:\n        skip()\n"
    (violation,) = {v.message for v in check_source("a.py", before, after)}
    assert "ms is a measured time" in violation


@pytest.mark.parametrize(
    "code", ["x = " + "-" * 100000 + "1", "x = a" + ".b" * 50000, "x" + "()" * 50000, "x = " + "1+" * 50000 + "1"]
)
def test_code_that_would_end_the_parser_is_refused(code):
    """libcst's parser ends the whole process on some of these."""
    assert [v.check for v in check_source("a.py", None, code.encode() + b"\n")] == ["syntax"]


@pytest.mark.parametrize(
    ("path", "line", "check"),
    [
        ("run.sh", "export LD_PRELOAD=/tmp/x.so", "environment"),
        ("run.sh", "PYTHONSTARTUP=x.py python train.py", "environment"),
        ("run.sh", "cat /proc/uptime", "process"),
        ("run.sh", "unset INFRARSI_PLAN", "probe"),
        ("config.yaml", "x: !!python/object/apply:os.system [ls]", "dynamic"),
    ],
)
def test_other_files_are_read_for_words_that_act(path, line, check):
    """R-A1: launch scripts and configurations in scope."""
    before = b"python train.py\n"
    (violation,) = check_source(path, before, before + line.encode() + b"\n")
    assert violation.check == check and violation.message.startswith(f"{path}:2: ")
    assert check_source(path, before + line.encode() + b"\n", line.encode() + b"\npython train.py --x\n") == ()
