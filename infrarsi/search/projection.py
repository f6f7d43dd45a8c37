"""The run's trials as an Optuna journal, so that optuna-dashboard shows them while the run goes on.

The ledger is the record; this file is a copy for looking at, written anew whenever a run starts or resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FILE = "optuna.journal"


class Projection:
    """One study in one journal file: `optuna-dashboard <file>` opens it."""

    def __init__(self, path: Path, name: str) -> None:
        """Start an empty study called `name` in a new file at `path`. OSError where it cannot be written."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path.parent.mkdir(parents=True, exist_ok=True)
        for left in (path, path.with_name(f"{path.name}.lock")):  # of a run that was killed
            left.unlink(missing_ok=True)
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
        self.path = path
        self._study = optuna.create_study(storage=storage, study_name=name, direction="minimize")

    def add(self, trial: FrozenTrial) -> None:
        """Append one finished trial."""
        self._study.add_trial(trial)
