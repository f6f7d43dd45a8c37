"""Beds without a calibration: real repositories under a real contract, on which only ring 1 can be judged."""

import pytest

from infrarsi.commands.events import silent
from infrarsi.commands.selftestbed import Ground, make_bed
from infrarsi.redteam.case import TRAINERS


@pytest.fixture(scope="session")
def beds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beds")
    return {t: make_bed(folder / t, Ground(t, "", 0, 1), None, silent, depth="none") for t in TRAINERS}
