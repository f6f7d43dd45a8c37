"""Plans for the fake trainer, each in a folder of its own."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from infrarsi.records import Candidate
from infrarsi.trial.local import LocalEngine
from infrarsi.trial.plan import Deadlines, TrialPlan

TRAINER = Path(__file__).parent.parent / "fakes" / "trainer.py"


@dataclass
class Place:
    """A folder that looks like a repository with one worktree, and makes plans for it."""

    root: Path
    count: int = 0

    @property
    def worktree(self) -> Path:
        return self.root / "worktree"

    def engine(self) -> LocalEngine:
        """An engine without the real probe: the fake trainer speaks for itself."""
        return LocalEngine(self.root / "inject", grace_seconds=0.3)

    def plan(self, *flags: str, ranks: int = 1, **changes) -> TrialPlan:
        self.count += 1
        argv = ("python3", "train.py", "--step-ms=10", f"--ranks={ranks}", *flags)
        values = {
            "id": f"t{self.count}",
            "run": "run",
            "number": 0,
            "candidate": Candidate(),
            "commit": "0" * 40,
            "role": "search",
            "block": 0,
            "worktree": self.worktree,
            "original_root": self.root / "origin",
            "entry": "train.py",
            "module": False,
            "argv": argv,
            "environment": (),
            "world_size": ranks,
            "mode": "trial",
            "warmup_steps": 2,
            "timed_steps": 6,
            "memory_bytes": None,
            "perturb": (),
            "deadlines": Deadlines(20.0, 20.0, 60.0),
            "log": self.root / f"logs/{self.count}.log",
            "cache_dir": self.root / "cache",
            "sandbox": "off",
        }
        return TrialPlan(**{**values, **changes})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("worktree", "inject", "origin"):
        (tmp_path / name).mkdir()
    shutil.copy(TRAINER, tmp_path / "worktree" / "train.py")
    return Place(tmp_path)
