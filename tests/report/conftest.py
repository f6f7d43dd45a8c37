"""Reports of hand-made runs."""

import ledgers
import pytest

from infrarsi.report.view import from_ledger


@pytest.fixture
def report(tmp_path):
    """Return a function: name of a run in `ledgers` -> its report."""

    def make(name, **more):
        lines = getattr(ledgers, name)(tmp_path)
        values = {"changes": ledgers.CHANGES, "diff": ledgers.DIFF, "calibration": ledgers.CALIBRATION, **more}
        return from_ledger(lines, **values)

    return make
