"""R-A6: honest changes of a real training are not refused.

Here ten of them on one seed; `python tests/commands/honest_case.py` makes 62 on three seeds, one with two ranks.
"""

import pytest
from honest_case import Training, changes

pytestmark = pytest.mark.real


def test_ten_honest_changes_of_a_real_training_pass(tmp_path):
    """R-A4, R-A6: other micro-batches, threads, attention, optimizer, checkpointing; bf16 in its own class only."""
    training = Training(tmp_path / "project", seed=1)
    with training.bench.checkout(training.workspace.head) as tree:
        calibration = training.calibrate(tree)
        bitwise, reorder, reduced = calibration.envelopes
        assert [m.name for m in reduced.moved] == [
            "repeat 1", "another number of threads", "micro-batch 2 x 8", "float64", "bf16 autocast",
        ]  # fmt: skip
        assert [m.name for m in bitwise.moved] == ["repeat 1"]
        assert reorder.loss < reduced.loss and reorder.update < reduced.update
        for one in changes(1)[:10]:
            found, moved, _ = training.judge(tree, calibration, one)
            assert not found, (one.name, found)
            if one.numerics == "reduced":  # What it moves is beyond the stricter class: precision cannot be smuggled.
                assert moved.update > reorder.update
