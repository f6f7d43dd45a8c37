"""What a trial's processes see of the environment: an allowlist, without anything that looks like a secret."""

from __future__ import annotations

import functools
import getpass
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from infrarsi.errors import TrialError
from infrarsi.trial.guard import MARKER_VARIABLE
from infrarsi.trial.supervise import OWNER_VARIABLE, owner

# fmt: off
PASSED = frozenset((
    "PATH", "LANG", "LANGUAGE", "TZ", "TERM", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX",
    "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "ROCM_HOME", "ROCM_PATH", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
))
PASSED_PREFIXES = ("LC_", "NCCL_")
HARNESS = frozenset((
    "PATH", "HOME", "TMPDIR", "TMP", "TEMP", "USER", "LOGNAME", "SHELL", "GLOO_SOCKET_IFNAME",
    "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
    "CUDA_CACHE_PATH",
    # Files and commands that a shell or a library runs by itself.
    "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "GCONV_PATH", "LOCPATH",
    "OMP_TOOL_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "OPENSSL_CONF",
))
HARNESS_PREFIXES = ("INFRARSI_", "GIT_", "PET_", "TORCHELASTIC_", "PYTHON", "LD_", "BASH_FUNC_")
# Of Python's own variables those that choose no code.
PLAIN_PYTHON = frozenset((
    "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONUNBUFFERED", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONUTF8",
    "PYTHONIOENCODING", "PYTHONFAULTHANDLER", "PYTHONNODEBUGRANGES", "PYTHON_GIL", "PYTHON_JIT", "PYTHON_CPU_COUNT",
))
# The only libraries that may be loaded before all others, from a folder of the system (`doctor` proposes them).
PRELOADED = re.compile(
    r"/(usr|lib|lib64|opt)/[\w./+-]*/?lib(tcmalloc(_minimal)?|jemalloc|mimalloc|iomp5|omp|gomp)(-\w+)?\.so[\d.]*"
)
SECRET_WORDS = frozenset((
    "KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "COOKIE",
    "AUTH",
))
# fmt: on
QUERY = (
    "import json,site,sys;"
    "print(json.dumps([sys.executable,site.getuserbase() if site.ENABLE_USER_SITE else '',"
    "[sys.prefix,sys.base_prefix,sys.exec_prefix,*[p for p in sys.path if p]]]))"
)


def is_secret(name: str) -> bool:
    """Return whether a variable's name says that its value is a secret (HF_TOKEN, yes; TOKENIZERS_PARALLELISM, no)."""
    return bool(SECRET_WORDS & set(re.split(r"[_\W]+", name.upper())))


def is_allowed_override(name: str, value: str = "") -> bool:
    """Return whether the contract or a candidate may set this variable (to this value)."""
    if name == "LD_PRELOAD":
        parts = re.split(r"[: ]+", value.strip()) if value.strip() else []
        return all(PRELOADED.fullmatch(part) and ".." not in part for part in parts)
    if name in PLAIN_PYTHON:
        return True
    return not (is_secret(name) or name in HARNESS or name.startswith(HARNESS_PREFIXES))


def base_environment(scratch: Path) -> dict[str, str]:
    """Return the part that set-up commands and trials share; HOME and TMPDIR are folders of `scratch`, made here.

    Thread counts and allocator settings are left out on purpose: only the contract and the candidate set those.
    """
    home, temporary = scratch / "home", scratch / "tmp"
    home.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    passed = {n: v for n, v in os.environ.items() if n in PASSED or n.startswith(PASSED_PREFIXES)}
    result = {name: value for name, value in passed.items() if not is_secret(name)}
    result.setdefault("PATH", os.defpath)
    user = _user()
    result.update(
        {
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "USER": user,
            "LOGNAME": user,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            # No credentials and no network: these would wait for both.
            "WANDB_MODE": "offline",
            "HF_HUB_OFFLINE": "1",
        }
    )
    return result


def harness(identity: str, plan_file: Path) -> dict[str, str]:
    """Return the harness' own variables: the probe's orders, and the marker by which the tree is found."""
    return {
        "INFRARSI_PLAN": str(plan_file),
        MARKER_VARIABLE: f"{identity}-{secrets.token_hex(8)}",
        OWNER_VARIABLE: owner(),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "trial"


def free_port() -> int:
    """Return a TCP port that is free now. The kernel hands them out in turn, so two askers get two."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Interpreter:
    """The training interpreter: its true executable (no pyenv or asdf shim), user base, and folders it loads from."""

    executable: str
    user_base: str
    folders: tuple[Path, ...]


@functools.cache
def interpreter(program: str) -> Interpreter:
    """Ask `program` (`python3`, or a path) what it is. TrialError where it does not start.

    Asked with our own environment, because a shim needs the user's HOME, which a trial does not have.
    """
    found = shutil.which(program)
    if found is None:
        raise TrialError(
            f"there is no interpreter {program}",
            why="the trial would run with it",
            hint='set python under [launch] in infrarsi.toml, for example python = ".venv/bin/python"',
            code="no-interpreter",
        )
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME") and not is_secret(n)}
    try:
        answer = subprocess.run(
            [found, "-c", QUERY], capture_output=True, text=True, timeout=60, check=True, env=variables, cwd="/"
        )
        executable, user_base, folders = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise TrialError(
            f"the interpreter {program} does not start", why=str(error), hint="try it by hand: " + found + " -c ''"
        ) from error
    return Interpreter(executable, user_base, tuple(dict.fromkeys(Path(f) for f in folders)))


@functools.cache
def installed_names(program: str) -> frozenset[str]:
    """Return the top-level names that can be imported from the interpreter's packages; none where it does not start."""
    try:
        folders = interpreter(program).folders
    except TrialError:
        return frozenset()
    entries = (entry for folder in folders if folder.is_dir() for entry in folder.iterdir())
    packages = (e.name.partition(".")[0] for e in entries if e.suffix in (".py", ".so") or (e / "__init__.py").exists())
    return frozenset(name for name in packages if name.isidentifier())


def locate(program: str, root: Path) -> str:
    """Return a program that the user named relative to the repository (`.venv/bin/python`) by its full path there.

    A worktree has no such folder, because git ignores it.
    """
    path = Path(program)
    return str(root / path) if len(path.parts) > 1 and not path.is_absolute() and (root / path).exists() else program


def is_python(program: str) -> bool:
    """Return whether a program's name is an interpreter's."""
    return re.fullmatch(r"python[\d.]*", Path(program).name) is not None
