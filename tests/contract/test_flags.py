"""Flags of a training script, read without importing it."""

from __future__ import annotations

import pytest

from infrarsi.contract.command import parse_command
from infrarsi.contract.flags import current_value, read_flags


def write(root, **files):
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def flags_of(root, entry="train.py"):
    return {flag.name: flag for flag in read_flags(root, entry)}


ARGPARSE = """
import argparse
raise SystemExit("never executed")
MICRO = 4
p = argparse.ArgumentParser()
g = p.add_argument_group("x")
p.add_argument("-b", "--batch-size", type=int, default=MICRO * 2, help="rows")
g.add_argument("--lr", type=float, default=-3e-4)
p.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
p.add_argument("--amp", action="store_true")
p.add_argument("--no_cuda", dest="cuda", action="store_false")
p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
p.add_argument("--fused", type=bool, default=False)
p.add_argument("--dynamic", default=compute())
p.add_argument("--steps", type=int)
p.add_argument("positional")
p.set_defaults(steps=7)
"""


@pytest.fixture
def argparse_root(tmp_path):
    write(tmp_path, train=ARGPARSE)
    return tmp_path


def test_argparse_flags(argparse_root):
    flags = flags_of(argparse_root)
    assert list(flags) == [
        *("--batch-size", "--lr", "--device", "--amp", "--no_cuda", "--compile", "--fused", "--dynamic", "--steps"),
    ]
    batch = flags["--batch-size"]
    assert (batch.dest, batch.default, batch.type, batch.style, batch.path) == (
        "batch_size",
        8,
        "int",
        "argparse",
        "train.py",
    )
    assert ARGPARSE.splitlines()[batch.line - 1].startswith('p.add_argument("-b"')
    assert flags["--lr"].default == -3e-4
    assert flags["--device"].choices == ("cpu", "cuda")
    assert [flags[n].boolean for n in ("--amp", "--no_cuda", "--compile", "--fused", "--lr")] == [
        *("store_true", "store_false", "optional_action", "value", "no"),
    ]
    assert (flags["--amp"].default, flags["--no_cuda"].default, flags["--no_cuda"].dest) == (False, True, "cuda")
    assert flags["--dynamic"].default is None
    assert flags["--steps"].default == 7


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("", "--batch-size", 8),
        ("--batch-size 16", "--batch-size", 16),
        ("--batch-size=16 --batch-size=32", "--batch-size", 32),
        ("--lr=1e-3", "--lr", 1e-3),
        ("--lr -1.5", "--lr", -1.5),
        ("--amp", "--amp", True),
        ("", "--amp", False),
        ("--no_cuda", "--no_cuda", False),
        ("--compile --no-compile", "--compile", False),
        ("--compile", "--compile", True),
        ("--fused true", "--fused", True),
        ("--batch-size many", "--batch-size", "many"),
        ("", "--dynamic", None),
    ],
)
def test_current_value_of_argparse(argparse_root, words, name, value):
    command = parse_command(f"python train.py {words}", argparse_root)
    assert current_value(flags_of(argparse_root)[name], command) == value


CONFIGURATOR = "import sys\nfor a in sys.argv[1:]:\n    globals()[a.split('=')[0][2:]] = 1\n"
GLOBALS = """
import time, torch
batch_size = 12
steps = 5 * 8
device = 'cuda'
dtype = 'bfloat16' if torch.cuda.is_available() else 'float16'
name = 'run' + str(time.time())
compile = True
_hidden = 3
layers = [1, 2]
model = object()
keys = [k for k in globals()]
exec(open('configurator.py').read())
batch_size = 99
later = 1
"""


@pytest.fixture
def configurator_root(tmp_path):
    write(tmp_path, train=GLOBALS, configurator=CONFIGURATOR)
    write(tmp_path, config__small="batch_size = 64\nsteps = 2 ** 3\ndevice = pick()\nother = 1\n")
    return tmp_path


def test_configurator_globals_are_flags(configurator_root):
    flags = flags_of(configurator_root)
    assert list(flags) == ["--batch_size", "--steps", "--device", "--dtype", "--name", "--compile"]
    assert [(f.default, f.type, f.boolean) for f in flags.values()] == [
        (12, "int", "no"),
        (40, "int", "no"),
        ("cuda", "str", "no"),
        (None, "str", "no"),
        (None, "str", "no"),
        (True, "bool", "value"),
    ]
    assert all(flag.style == "configurator" for flag in flags.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (12, 40, "cuda", True)),
        ("config/small.py", (64, 8, None, True)),
        ("config/small.py --batch_size=32", (32, 8, None, True)),
        ("--batch_size=32 --device=cpu config/small.py", (64, 8, None, True)),
        ("--device=cpu --compile=False", (12, 40, "cpu", False)),
    ],
)
def test_a_config_file_among_the_arguments_counts(configurator_root, words, expected):
    flags = flags_of(configurator_root)
    command = parse_command(f"torchrun --nproc_per_node=2 train.py {words}", configurator_root)
    names = ("--batch_size", "--steps", "--device", "--compile")
    values = tuple(current_value(flags[n], command) for n in names)
    assert values == expected


def test_exec_of_something_else_is_no_configurator(tmp_path):
    write(tmp_path, train="a = 1\nexec(open('other.py').read())\n", other="b = 2\n")
    assert read_flags(tmp_path, "train.py") == ()


def test_flags_of_imported_modules_two_levels_deep(tmp_path):
    write(tmp_path, train="from lib.args import parse\nimport torch\n", lib__args="from . import more\n")
    write(tmp_path, lib__more="def f(p):\n    p.add_argument('--deep', type=int, default=1)\n")
    (tmp_path / "lib" / "__init__.py").write_text("")
    assert flags_of(tmp_path)["--deep"].path == "lib/more.py"
    write(tmp_path, pkg__train="from lib.args import parse\n")
    assert "--deep" in flags_of(tmp_path, "pkg.train")


def test_click_options(tmp_path):
    write(
        tmp_path,
        train="import click\n@click.command()\n@click.option('--rows', default=4)\n"
        "@click.option('--fast/--slow', default=True)\n@click.option('--amp', is_flag=True)\n"
        "@click.option('--dtype', type=click.Choice(['fp32', 'bf16']), default='fp32')\ndef main(): pass\n",
    )
    flags = flags_of(tmp_path)
    assert (flags["--rows"].type, flags["--rows"].default, flags["--rows"].style) == ("int", 4, "click")
    assert flags["--fast"].boolean == "optional_action"
    assert flags["--amp"].boolean == "store_true"
    assert flags["--dtype"].choices == ("fp32", "bf16")


def test_dataclasses_only_where_a_parser_reads_them(tmp_path):
    fields = "from dataclasses import dataclass, field\n@dataclass\nclass Args:\n    rows: int = 4\n"
    fields += "    lr: float = field(default=1e-3)\n    bf16: bool = False\n    name: str | None = None\n"
    write(tmp_path, train=fields)
    assert read_flags(tmp_path, "train.py") == ()
    write(tmp_path, train=fields + "from transformers import HfArgumentParser\np = HfArgumentParser((Args,))\n")
    flags = flags_of(tmp_path)
    assert [(f.name, f.default, f.type) for f in flags.values()] == [
        ("--rows", 4, "int"),
        ("--lr", 1e-3, "float"),
        ("--bf16", False, "bool"),
        ("--name", None, "str"),
    ]
    assert flags["--bf16"].boolean == "value"
    write(tmp_path, train=fields + "import tyro\nargs = tyro.cli(Args)\n")
    assert flags_of(tmp_path)["--bf16"].boolean == "optional_action"


def test_broken_or_missing_source_has_no_flags(tmp_path):
    write(tmp_path, train="def broken(:\n")
    assert read_flags(tmp_path, "train.py") == ()
    assert read_flags(tmp_path, "absent.py") == ()
    assert read_flags(tmp_path, "no.such.module") == ()
