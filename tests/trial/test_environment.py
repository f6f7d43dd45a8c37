"""What a trial sees of the environment (R-A7), and the interpreter it runs with."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infrarsi.trial.environment import free_port, installed_names, interpreter, is_allowed_override, is_secret
from infrarsi.trial.execute import run_trial
from infrarsi.trial.plan import trial_environment

SECRETS = {
    "ANTHROPIC_API_KEY": "sk-1",
    "HF_TOKEN": "hf-1",
    "AWS_SECRET_ACCESS_KEY": "x",
    "NCCL_AUTH_TOKEN": "y",
    "GIT_DIR": "/elsewhere",
    "GIT_ASKPASS": "z",
    "SSH_AUTH_SOCK": "/run/agent",
    "LD_PRELOAD": "/tmp/evil.so",
    "PYTHONPATH": "/tmp/evil",
    "OMP_NUM_THREADS": "7",
}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("OPENAI_API_KEY", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("KEYBOARD", False),
        ("x.key", True),
    ],
)
def test_secret_names(name, secret):
    assert is_secret(name) is secret


def test_what_the_trial_itself_sees(place, monkeypatch):
    """R-A7: the environment as a rank has it, in a process tree that was really started."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (place.worktree / "show.py").write_text("import json, os, sys; print(json.dumps([dict(os.environ), sys.path]))")
    own = (("MY_FLAG", "1"), ("MY_API_KEY", "sk-2"), ("PYTHONPATH", "lib"), ("HOME", "/"), ("INFRARSI_PLAN", "x"))
    plan = replace(place.plan(environment=own, ranks=2), argv=("python3", "show.py"))
    seen, path = json.loads(run_trial(plan, place.engine()).log_tail)
    assert not set(seen.values()) & {*SECRETS.values(), "sk-2"}
    assert not [name for name in seen if name.startswith("GIT_") or is_secret(name)]
    assert seen["MY_FLAG"] == "1" and seen["OMP_WAIT_POLICY"] == "passive" and seen["OMP_NUM_THREADS"] == "1"
    assert Path(seen["HOME"]).parent == Path(seen["TMPDIR"]).parent and seen["HOME"] != "/"
    assert seen["GLOO_SOCKET_IFNAME"] == "lo" and seen["INFRARSI_TRIAL"].startswith(plan.id + "-")
    inject, worktree = str(place.root / "inject"), str(place.worktree)
    assert seen["PYTHONPATH"].split(":") == [inject, worktree, f"{worktree}/lib"]
    assert path.index(inject) < path.index(worktree, 1)


def test_the_worktree_stands_in_for_the_users_tree(place):
    """R-A10: a PYTHONPATH of the contract that names the user's tree leads to the worktree; src comes with it."""
    (place.worktree / "src").mkdir()
    plan = place.plan(environment=(("PYTHONPATH", f"{place.root}/origin/lib:/opt/other"),))
    seen = trial_environment(plan, place.root / "inject", place.root, place.root / "plan.json")["PYTHONPATH"]
    tree = place.worktree
    assert seen == f"{place.root}/inject:{tree}:{tree}/src:{tree}/lib:/opt/other"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *((name, "x", False) for name in ("LD_AUDIT", "LD_LIBRARY_PATH", "BASH_ENV", "PS4", "GCONV_PATH")),
        *((name, "x", False) for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX")),
        *((name, "x", False) for name in ("PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONUSERBASE", "PYTHONSAFEPATH")),
        *((name, "x", False) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "GLOO_SOCKET_IFNAME")),
        *((name, "x", False) for name in ("OMP_TOOL_LIBRARIES", "CUDA_INJECTION64_PATH", "TORCHELASTIC_ERROR_FILE")),
        *((name, "1", True) for name in ("PYTHONHASHSEED", "PYTHONMALLOC", "OMP_NUM_THREADS", "KMP_BLOCKTIME")),
        *((name, "1", True) for name in ("PYTORCH_CUDA_ALLOC_CONF", "NCCL_ALGO", "MALLOC_TRIM_THRESHOLD_")),
        ("LD_PRELOAD", "", True),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", True),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2:/usr/lib64/libgomp.so.1", True),
        ("LD_PRELOAD", "libtcmalloc.so", False),
        ("LD_PRELOAD", "/tmp/libtcmalloc.so", False),
        ("LD_PRELOAD", "/usr/lib/../../tmp/libtcmalloc.so", False),
        ("LD_PRELOAD", "/usr/lib/libfaketime.so.1", False),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2 ./evil.so", False),
    ],
)
def test_variables_that_choose_code_are_not_for_candidates(name, value, allowed):
    """R-A1: an environment variable may set how fast the training runs, not what runs."""
    assert is_allowed_override(name, value) is allowed


def test_names_that_are_installed():
    names = installed_names(sys.executable)
    assert {"torch", "numpy", "pytest"} <= names
    assert installed_names("no-such-python") == frozenset()


@pytest.mark.parametrize("name", ["INFRARSI_PLAN", "GIT_DIR", "PET_NPROC_PER_NODE", "HOME", "X_TOKEN"])
def test_the_harness_names_are_ours(name):
    assert not is_allowed_override(name)


def test_a_venv_is_found_with_its_packages(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    found = interpreter(str(tmp_path / "venv/bin/python"))
    assert Path(found.executable).parent == tmp_path / "venv/bin"
    assert any(str(folder).startswith(str(tmp_path / "venv/lib")) for folder in found.folders)


def test_the_venv_of_the_plan_runs_the_trial(place):
    """A venv in the repository, which no worktree has; also for what the launcher starts by name."""
    venv = place.root / "origin/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "only_here.py").write_text("VALUE = 42")
    (place.worktree / "show.py").write_text(
        "import only_here, subprocess; print(only_here.VALUE)\n"
        "subprocess.run(['python3', '-c', 'import only_here; print(only_here.VALUE + 1)'])\n"
    )
    plan = replace(place.plan(), argv=("venv/bin/python", "show.py"))
    assert run_trial(plan, place.engine()).log_tail.split() == ["42", "43"]


def test_ports_differ():
    assert len({free_port() for _ in range(8)}) > 1
