"""The user's launch command: read it, say it again, lay settings over it.

Three launchers are understood: torchrun (also as `python -m torch.distributed.run`), a plain python, and a shell script
that starts one of the two. Nothing is executed here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from infrarsi.contract import arguments, shellscript
from infrarsi.errors import UsageError
from infrarsi.records import Assignment

Launcher = Literal["torchrun", "python", "script"]
TORCHRUN_MODULE = "torch.distributed.run"
COMMAND_HINT = "--command 'torchrun --standalone --nproc_per_node=2 train.py'"

_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SHELL_SYNTAX = re.compile(r"[|;<>`&]|\$[\w({]")
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_PREFIXES = ("env", "exec", "nohup", "time")
# Interpreter options that take the next word as their value.
_PYTHON_VALUES = ("-W", "-X")
# torchrun options without a value (`torchrun --help`, torch 2.13); every other one takes one.
_TORCHRUN_BARE = ("--standalone", "--run-path", "--virtual-local-rank")
_OTHER_LAUNCHERS = {
    "accelerate": "accelerate decides the launch from a file of its own",
    "deepspeed": "the deepspeed launcher starts ranks in its own way",
    **{tool: f"{tool} belongs to the engine, not to the command" for tool in ("srun", "sbatch")},
    **{
        tool: f"{tool} starts ranks in its own way"
        for tool in ("mpirun", "mpiexec", "horovodrun", "colossalai", "composer", "ray")
    },
    "docker": "a container hides the ranks",
    **{
        tool: f"{tool} chooses the interpreter; name that interpreter in infrarsi.toml ([launch] python) instead"
        for tool in ("uv", "poetry", "pipenv", "conda")
    },
}


@dataclass(frozen=True)
class Command:
    """One launch command, taken apart.

    `launcher_args` are torchrun's own options, the interpreter's own options (launcher python), or the words up to and
    with the script (launcher script: `("bash", "run.sh")`). `entry` is a path relative to the repository, or a module
    name when `module`. `python` is "" where the command leaves the interpreter to the launcher. For a script,
    `script_launcher_args` and `script_args` are what its launch line says, `"$@"` included, and `entry_args` is what
    the command adds to it.
    """

    environment: tuple[tuple[str, str], ...]
    launcher: Launcher
    launcher_args: tuple[str, ...]
    python: str
    entry: str
    entry_args: tuple[str, ...]
    module: bool
    script_launcher_args: tuple[str, ...] = ()
    script_args: tuple[str, ...] = ()
    root: Path | None = field(default=None, compare=False)

    @property
    def seen_args(self) -> tuple[str, ...]:
        """What the entry finds in sys.argv[1:]."""
        if self.launcher != "script":
            return self.entry_args
        return tuple(
            word
            for given in self.script_args
            for word in (self.entry_args if given in shellscript.ALL_ARGUMENTS else (given,))
        )

    @property
    def passes_arguments(self) -> bool:
        """Whether arguments added at the end reach the entry (a script must pass `"$@"` on)."""
        return self.launcher != "script" or any(w in shellscript.ALL_ARGUMENTS for w in self.script_args)


def parse_command(text_or_argv: str | Sequence[str], root: Path) -> Command:
    """Read a command line, or argv, that runs in `root`. Raises UsageError for what cannot be launched or found."""
    words = _split(text_or_argv) if isinstance(text_or_argv, str) else list(text_or_argv)
    command = _parse(words, root)
    _require_entry(command, root)
    return command


def argv_of(command: Command) -> tuple[str, ...]:
    """Return the argv of a command, environment left out; `parse_command` of it gives the same command."""
    module = ("-m",) if command.module else ()
    match command.launcher:
        case "script":
            return (*command.launcher_args, *command.entry_args)
        case "torchrun":
            start = (command.python, "-m", TORCHRUN_MODULE) if command.python else ("torchrun",)
            return (*start, *command.launcher_args, *module, command.entry, *command.entry_args)
        case "python":
            return (command.python or "python3", *command.launcher_args, *module, command.entry, *command.entry_args)


def overlay(
    command: tuple[str, ...], entry: str, python: str, assignments: Sequence[Assignment], *, root: Path | None = None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the argv to execute under `assignments`, and the environment variables to add.

    torchrun is started as a module of `python`, the training's interpreter. Flags are set where and how they stand,
    or appended as `--flag=value`; None removes; True is a bare flag unless the flag stands as `--flag=…` (or the
    entry under `root` reads it with a value). A removed environment variable is returned as "". `root` is where
    launch scripts and the entry are read, by default the current folder. `config` assignments are edits of a tree
    and refused here.
    """
    base = root or Path.cwd()
    parsed = _parse(list(command), base, entry)
    flags = [a for a in assignments if a.kind == "flag"]
    launcher = [a for a in assignments if a.kind == "torchrun"]
    extra = dict(parsed.environment)
    for assignment in assignments:
        if assignment.kind == "env":
            extra[assignment.target] = "" if assignment.value is None else arguments.as_text(assignment.value)
        elif assignment.kind == "config":
            raise UsageError(f"{assignment.target} is a key of a file", why="an overlay holds flags and variables only")
    if flags and not parsed.passes_arguments:
        raise UsageError(
            f"{parsed.launcher_args[-1]} passes no arguments on, so {flags[0].target} cannot be set",
            why='its launch line lacks "$@"',
            hint=f'add "$@" after {parsed.entry} in {parsed.launcher_args[-1]}, and commit',
        )
    entry_args = parsed.entry_args
    if flags:
        bare, valued = arguments.flag_kinds(base, parsed.entry, flags)
        for assignment in flags:
            entry_args = arguments.assign(entry_args, assignment.target, assignment.value, bare=bare, valued=valued)
    module = ("-m",) if parsed.module else ()
    if parsed.launcher == "script":
        if launcher:
            raise UsageError(
                f"{launcher[0].target} is written inside {parsed.launcher_args[-1]}",
                why="a torchrun option cannot be set from outside a script",
                hint="give the torchrun command itself as [workload] command",
            )
        return (*parsed.launcher_args, *entry_args), tuple(sorted(extra.items()))
    if parsed.launcher == "torchrun" or launcher:
        words = parsed.launcher_args if parsed.launcher == "torchrun" else ("--standalone",)
        for assignment in launcher:
            words = arguments.assign(words, assignment.target, assignment.value, bare=_TORCHRUN_BARE, dashes=True)
        argv = (python, "-m", TORCHRUN_MODULE, *words, *module, parsed.entry, *entry_args)
    else:
        argv = (python, *parsed.launcher_args, *module, parsed.entry, *entry_args)
    return argv, tuple(sorted(extra.items()))


def world_size_of(command: Command) -> int:
    """Return the number of ranks. Raises UsageError where the command leaves it to the machine ("gpu", "auto")."""
    words = command.launcher_args if command.launcher == "torchrun" else command.script_launcher_args
    if command.launcher == "python":
        return 1
    size = 1
    for name in ("--nnodes", "--nproc-per-node"):
        value = arguments.find(words, name, dashes=True)
        if value is None:
            continue
        if not value.isdigit() or int(value) < 1:
            raise UsageError(
                f"{name}={value} leaves the number of ranks open",
                why="the contract fixes the world size",
                hint=f"write a number, e.g. {name}=2",
            )
        size *= int(value)
    return size


def _split(text: str) -> list[str]:
    """Split a command line; shell syntax belongs into a script."""
    syntax = _SHELL_SYNTAX.search(re.sub(r"'[^']*'", "", text))
    if syntax:
        raise UsageError(
            f"the command contains the shell syntax {syntax.group()!r}",
            why="a command is one program with its arguments, started without a shell",
            hint="write the command out, or put it in a script and give 'bash run.sh'",
        )
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {error}", hint=COMMAND_HINT) from error


def _parse(words: list[str], root: Path, entry: str = "") -> Command:
    environment, words = _environment(words)
    if not words:
        raise UsageError("the command is empty", hint=COMMAND_HINT)
    program, rest = words[0], words[1:]
    name = Path(program).name
    if name in _OTHER_LAUNCHERS:
        raise UsageError(
            f"{name} is not a launcher that can be measured", why=_OTHER_LAUNCHERS[name], hint=COMMAND_HINT
        )
    if name == "torchrun":
        return _torchrun(environment, "", rest, root)
    if _PYTHON.match(name):
        return _python(environment, program, rest, root)
    if name.endswith(".py"):
        return Command(environment, "python", (), "", _inside(program, root), tuple(rest), False, root=root)
    if name in _SHELLS or name.endswith((".sh", ".bash")):
        return _script(environment, words, root, entry)
    raise UsageError(
        f"{program} is not a launcher that is known here",
        why="torchrun, python and shell scripts that start one of the two are",
        hint=COMMAND_HINT,
    )


def _environment(words: list[str]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Take `NAME=value` words and `env`, `exec`, `nohup`, `time` from the front."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        match = _ASSIGNMENT.fullmatch(rest[0])
        if match:
            found[match[1]] = match[2]
        elif rest[0] not in _PREFIXES:
            break
        rest = rest[1:]
    return tuple(sorted(found.items())), rest


def _torchrun(environment: tuple[tuple[str, str], ...], python: str, words: list[str], root: Path) -> Command:
    options: list[str] = []
    module = False
    while words and words[0].startswith("-"):
        name = words[0].partition("=")[0].replace("_", "-")
        if name in ("-m", "--module"):
            module, words = True, words[1:]
        elif name == "--no-python":
            raise UsageError("torchrun --no-python starts another program", why="the training must be a Python entry")
        elif name in _TORCHRUN_BARE or "=" in words[0]:
            options, words = [*options, words[0]], words[1:]
        else:
            options, words = [*options, *words[:2]], words[2:]
    if not words:
        raise UsageError("torchrun is given no training script", hint=COMMAND_HINT)
    entry = words[0] if module else _inside(words[0], root)
    return Command(environment, "torchrun", tuple(options), python, entry, tuple(words[1:]), module, root=root)


def _python(environment: tuple[tuple[str, str], ...], python: str, words: list[str], root: Path) -> Command:
    options: list[str] = []
    while words and words[0].startswith("-"):
        if words[0] == "-m":
            if words[1:2] == [TORCHRUN_MODULE]:
                return _torchrun(environment, python, words[2:], root)
            if words[1:2] == ["torch.distributed.launch"]:
                raise UsageError(
                    "torch.distributed.launch is deprecated and not measured",
                    why="it hands --local-rank to the script, which torchrun does not",
                    hint=COMMAND_HINT,
                )
            if len(words) < 2:
                raise UsageError("python -m is given no module", hint=COMMAND_HINT)
            if words[1] in ("accelerate.commands.launch", "deepspeed.launcher.runner"):
                raise UsageError(f"{words[1]} is not a launcher that can be measured", hint=COMMAND_HINT)
            return Command(environment, "python", tuple(options), python, words[1], tuple(words[2:]), True, root=root)
        if words[0] == "-c":
            raise UsageError("python -c has no training script", hint=COMMAND_HINT)
        count = 2 if words[0] in _PYTHON_VALUES else 1
        options, words = [*options, *words[:count]], words[count:]
    if not words:
        raise UsageError("python is given no training script", hint=COMMAND_HINT)
    entry = _inside(words[0], root)
    return Command(environment, "python", tuple(options), python, entry, tuple(words[1:]), False, root=root)


def _script(environment: tuple[tuple[str, str], ...], words: list[str], root: Path, entry: str) -> Command:
    """Read which training a shell script launches, and whether it passes arguments on."""
    place = 0 if words[0].endswith((".sh", ".bash")) else 1
    while place < len(words) and words[place].startswith("-") and words[place] != "-c":
        place += 1
    if place >= len(words) or words[place] == "-c":
        raise UsageError("the shell is given no script", hint="give 'bash run.sh', or the torchrun command itself")
    name = words[place]
    path = root / name
    if not path.is_file():
        raise UsageError(f"there is no script {name}", why=f"it is looked for in {root}")
    launches = []
    for line in shellscript.launch_lines(path.read_text(errors="replace"), words[place + 1 :]):
        if Path(line[0]).name in _SHELLS:
            continue
        try:
            launches.append(_parse(line, root))
        except UsageError:
            if Path(line[0]).name in _OTHER_LAUNCHERS:
                raise
    # a script may prepare data with python first and then train: torchrun wins, then the last
    launches.sort(key=lambda c: (c.entry == entry, c.launcher == "torchrun"))
    if not launches or launches[-1].launcher == "script":
        raise UsageError(
            f"{name} starts no training that could be found",
            why="no line of it calls torchrun or python with a script",
            hint="give the torchrun command itself",
        )
    inner = launches[-1]
    return Command(
        environment=environment,
        launcher="script",
        launcher_args=tuple(words[: place + 1]),
        python=inner.python,
        entry=inner.entry,
        entry_args=tuple(words[place + 1 :]),
        module=inner.module,
        script_launcher_args=inner.launcher_args if inner.launcher == "torchrun" else (),
        script_args=inner.entry_args,
        root=root,
    )


def _inside(path: str, root: Path) -> str:
    """Return a path relative to the repository where it lies in it."""
    candidate = Path(path)
    if candidate.is_absolute() and candidate.is_relative_to(root):
        candidate = candidate.relative_to(root)
    return candidate.as_posix()


def module_path(root: Path, module: str) -> str | None:
    """Return the file, relative to `root`, that `python -m module` runs, if it is in the repository."""
    parts = module.replace(".", "/")
    for path in (f"{parts}.py", f"{parts}/__main__.py", f"src/{parts}.py", f"src/{parts}/__main__.py"):
        if (root / path).is_file():
            return path
    return None


def _require_entry(command: Command, root: Path) -> None:
    if command.module and module_path(root, command.entry) is None:
        what, why = f"the module {command.entry} is not in this repository", "only its own code can be changed"
        raise UsageError(what, why=why, hint=COMMAND_HINT)
    if not command.module and not (root / command.entry).is_file():
        what, why = f"there is no file {command.entry} in {root}", "paths are relative to the repository's top level"
        raise UsageError(what, why=why, hint=COMMAND_HINT)
