"""Makes the helpers of this folder importable, and gives each test a copy of the tiny trainer."""

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tiny trainer as `train.py`."""
    path = tmp_path / "w"
    path.mkdir()
    shutil.copy(HERE / "trainers" / "tiny.py", path / "train.py")
    return path
