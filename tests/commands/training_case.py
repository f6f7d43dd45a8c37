"""A repository with a training that takes milliseconds, and the tool as a user types it: real git, real processes."""

import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner
from fake_tool import make_engine

from infrarsi import cli
from infrarsi.codec import decode
from infrarsi.ledger import parse
from infrarsi.records import Trial

TRAINER = Path(__file__).parents[1] / "fakes" / "trainer.py"
TOOL = Path(__file__).parent / "fake_tool.py"
# The jitter makes this machine noisy to doctor, so that a real disturbance of the same size voids no pair.
COMMAND = ("python3", "train.py", "--step-ms=10", "--jitter=0.1", "--data=data/train.bin")
HARDWARE = {
    "cpu": "A CPU", "isa": ["avx2"], "cores": 2, "memory_bytes": 2**34, "accelerators": [],
    "accelerator_memory_bytes": 0, "links": "", "torch": "2.6.0", "driver": "", "python": "3.11.2", "libraries": [],
    "peaks": {"float32": 1e11, "bfloat16": 1e11},
}  # fmt: skip
# The interpreter that the contract names: it answers for machine.py by itself, so that no test waits for torch.
PYTHON = """#!/bin/sh
case "$1" in
*/machine.py) cat "{machine}" ;;
*) exec "{python}" "$@" ;;
esac
"""
KNOB = """
[[knobs]]
name = "micro_batch"
kind = "flag"
baseline = "8 x 4"
ordinal = true
[[knobs.levels]]
label = "16 x 2"
set = { "--batch_size" = 16, "--accum" = 2 }
[[knobs.levels]]
label = "32 x 1"
set = { "--batch_size" = 32, "--accum" = 1 }
"""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def result(self):
        """The result in the JSON envelope, the last line of a run's NDJSON."""
        text = self.out if self.out.startswith("{\n") else self.out.splitlines()[-1]
        value = json.loads(text)
        assert value["schema"] == 1
        return value


class Case:
    """One repository under `home`, which holds the user's git configuration and the training's interpreter."""

    def __init__(self, home: Path, root: Path) -> None:
        self.home, self.root = home, root

    @property
    def environment(self) -> dict[str, str]:
        """The user's: nothing of the real user's git configuration, agent or GIT_ variables."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("GIT_", "SSH_", "GNUPG", "INFRARSI_"))}
        own = {"HOME": self.home, "XDG_CONFIG_HOME": self.home / ".config", "GIT_CONFIG_GLOBAL": self.home / "config"}
        return {**kept, **{n: str(v) for n, v in own.items()}, "GIT_CONFIG_NOSYSTEM": "1", "NO_COLOR": "1"}

    @property
    def python(self) -> str:
        return str(self.home / "bin" / "python3")

    def git(self, *args: str) -> str:
        done = subprocess.run(["git", *args], cwd=self.root, capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, f"git {args}: {done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def commit(self, message: str = "change", **files: str) -> str:
        for path, text in files.items():
            self.write(path, text)
        self.git("add", "-A")
        self.git("commit", "-q", "--no-gpg-sign", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def toml(self, knobs: str = KNOB, command: tuple[str, ...] = COMMAND, budget: str = "trials = 3") -> str:
        """A contract by hand, with a window that takes a tenth of a second."""
        return (
            '[contract]\ngoal = "make it faster"\n\n'
            f'[workload]\nentry = "train.py"\ncommand = {json.dumps(command)}\ndata = ["data/train.bin"]\n\n'
            f'[scope]\neditable = ["*.py"]\nlocked = ["data/**"]\n\n[budget]\n{budget}\n\n'
            f'[launch]\npython = "{self.python}"\nsandbox = "off"  # my own choice\n\n'
            f"[search]\nwarmup_steps = 1\ntimed_steps = 8\nfinalists = 1\n{knobs}"
        )

    def say(self, *args: str, folder: str = ".") -> Said:
        """Run a verb in this process, from the repository's root or a folder of it."""
        before, cli._engine = cli._engine, make_engine
        try:
            with self.as_user(), contextlib.chdir(self.root / folder):
                done = CliRunner().invoke(cli.cli, args)
        finally:
            cli._engine = before
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Said(done.exit_code, done.stdout, done.stderr)

    @contextlib.contextmanager
    def as_user(self):
        """Context: this process stands in the repository, with the user's environment."""
        old = {**os.environ}
        os.environ.clear()
        os.environ.update(self.environment)
        try:
            with contextlib.chdir(self.root):
                yield
        finally:
            os.environ.clear()
            os.environ.update(old)

    def ok(self, *args: str) -> dict:
        """Run a verb with --json that must succeed and touch nothing of the user's; return its result."""
        with self.untouched():
            said = self.say(*args, "--json")
        assert said.code == 0, said.out + said.err
        assert said.result["ok"]
        assert said.result["error"] is None
        return said.result["result"]

    def start(self, *args: str) -> subprocess.Popen:
        """Start a verb in a process of its own."""
        argv = [sys.executable, str(TOOL), *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(argv, cwd=self.root, env=self.environment, **pipes)

    def untouched(self) -> "Untouched":
        return Untouched(self)

    def everything(self) -> dict[str, object]:
        """HEAD, index, refs that are not ours, and every byte and mode outside the tool's own folder (R-E1)."""
        files = {
            str(p.relative_to(self.root)): (p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns)
            for p in sorted(self.root.rglob("*"))
            if p.is_file() and ".git" not in p.relative_to(self.root).parts
        }
        folder = self.root / ".git"
        own = [folder / name for name in ("index", "HEAD", "config") if (folder / name).exists()]
        refs = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return {
            "files": files,
            "refs": [r for r in refs if "infrarsi" not in r],
            **{p.name: p.read_bytes() for p in own},
        }

    @property
    def state(self) -> Path:
        return self.root / ".git" / "infrarsi"

    def ledgers(self) -> list[Path]:
        return sorted(self.state.glob("runs/*/ledger.jsonl"))

    def lines(self) -> list:
        """The lines of the only run's ledger, its chain checked."""
        (path,) = self.ledgers()
        return parse(path.read_bytes())[0]

    def trials(self) -> list[Trial]:
        return [decode(Trial, line.body) for line in self.lines() if line.kind == "trial"]

    def processes(self) -> list[int]:
        """Processes of this repository's trials that are alive, found by the marker in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if b"INFRARSI_TRIAL=" in variables and os.fsencode(self.root) in variables:
                found.append(int(entry.name))
        return found


class Untouched:
    """Context: whatever happens inside, the user's tree is afterwards what it was."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __enter__(self) -> None:
        self.before = self.case.everything()

    def __exit__(self, kind, value, trace) -> None:
        if kind is None:
            assert self.case.everything() == self.before


def patch_of(path: str, before: str, after: str) -> str:
    """A unified diff as git writes it."""
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))


def until(condition, seconds: float = 20.0) -> None:
    """Wait until `condition()` is true, and fail where it does not become so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def make_home(home: Path) -> Path:
    """A user: git configuration with an ssh key to sign with, and an interpreter that knows its machine."""
    (home / "bin").mkdir(parents=True)
    set_machine(home)
    python = home / "bin" / "python3"
    python.write_text(PYTHON.format(machine=home / "machine.json", python=sys.executable))
    python.chmod(0o755)
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "user", "-f", str(key)], check=True)
    trusted = home / "allowed_signers"
    trusted.write_text(f'user@example.com namespaces="git,infrarsi-audit@v1" {key.with_suffix(".pub").read_text()}')
    (home / "config").write_text(
        "[user]\n\tname = A User\n\temail = user@example.com\n"
        f"\tsigningkey = {key}.pub\n[init]\n\tdefaultBranch = main\n"
        f'[gpg]\n\tformat = ssh\n[gpg "ssh"]\n\tallowedSignersFile = {trusted}\n'
    )
    return home


def set_machine(home: Path, **changes) -> None:
    (home / "machine.json").write_text(json.dumps({**HARDWARE, **changes}))


def make_repository(home: Path, root: Path) -> Case:
    """A committed training; beside it a changed file out of scope, an untracked one, and ignored data."""
    case = Case(home, root)
    root.mkdir()
    case.git("init", "-q")
    case.write(".gitignore", "data/\nscratch/\n")
    case.write("data/train.bin", "0123456789" * 10)
    case.write("scratch/notes", "mine")
    shutil.copy(TRAINER, root / "train.py")
    case.commit("start", **{"README.md": "A training.\n"})
    case.write("README.md", "A training, better described.\n")
    case.write("todo.txt", "not for git\n")
    return case


def copy_of(case: Case, root: Path) -> Case:
    """Another repository that stands where `case` stands."""
    shutil.copytree(case.root, root, symlinks=True)
    return Case(case.home, root)
