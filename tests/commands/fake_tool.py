"""The real command line, with an engine that puts no probe before the training: the fake trainer speaks for itself.

python fake_tool.py run --trials 4
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from infrarsi import cli
from infrarsi.trial.local import LocalEngine


class CalmEngine(LocalEngine):
    """A machine that is never busy: whatever else runs here voids no pair. A trainer that sleeps hardly notices."""

    def result(self, handle):
        return replace(super().result(handle), pressure=0.0)


def make_engine():
    inject = Path(tempfile.gettempdir()) / "infrarsi-no-probe"
    inject.mkdir(exist_ok=True)
    return CalmEngine(inject, grace_seconds=0.3)


if __name__ == "__main__":
    cli._engine = make_engine
    sys.exit(cli.main())
