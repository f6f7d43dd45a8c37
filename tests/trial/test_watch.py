"""What a trial writes into its own sources, links and packages (R-A1); its outputs are its own business (R-A6)."""

import os
import shutil
import time

import pytest

from infrarsi.trial.watch import Watch

TRACKED = ("train.py", "pkg/__init__.py", "pkg/model.py", "config.yaml")


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "pkg").mkdir(parents=True)
    for name in TRACKED:
        (root / name).write_text("x = 1\n")
    (root / ".git").write_text("gitdir: elsewhere\n")
    data = tmp_path / "data.bin"
    data.write_bytes(b"rows")
    (root / "data.bin").symlink_to(data)
    (tmp_path / "site-packages" / "torch").mkdir(parents=True)
    (tmp_path / "site-packages" / "torch" / "nn.py").write_text("")
    return root


def found(tree, attack):
    watch = Watch.begin(tree, TRACKED, [tree.parent / "site-packages"])
    time.sleep(0.02)
    attack(tree)
    return [v.message for v in watch.violations()]


def rewritten_and_put_back(tree):
    path = tree / "pkg/model.py"
    status, text = path.stat(), path.read_text()
    path.write_text("x = 2\n")
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced_and_moved_back(tree):
    (tree / "pkg/model.py").rename(tree / "kept")
    (tree / "pkg/model.py").write_text("x = 2\n")
    (tree / "kept").replace(tree / "pkg/model.py")


def link_turned(tree):
    (tree / "data.bin").unlink()
    (tree / "data.bin").symlink_to("/dev/zero")


def link_made_a_file(tree):
    (tree / "data.bin").unlink()
    (tree / "data.bin").write_bytes(b"easy")


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (lambda t: (t / "pkg/model.py").write_text("x = 2\n"), "pkg/model.py was written"),
        (rewritten_and_put_back, "pkg/model.py was written"),
        (replaced_and_moved_back, "pkg/model.py was written"),
        (lambda t: (t / "config.yaml").write_text("a: 1\n"), "config.yaml was written"),
        (lambda t: (t / "config.yaml").unlink(), "config.yaml was removed"),
        (lambda t: (t / "config.yaml").chmod(0o600), "config.yaml was written"),
        (link_turned, "data.bin was replaced"),
        (link_made_a_file, "data.bin was removed or replaced"),
        (lambda t: (t / "data.bin").write_bytes(b"less"), "data.bin was replaced"),
        (lambda t: (t / "pkg/fast.py").write_text(""), "pkg/fast.py is code that the trial wrote"),
        (lambda t: (t / "random.py").write_text(""), "random.py is code that the trial wrote"),
        (lambda t: (t / "x.pth").write_text(""), "x.pth is code that the trial wrote"),
        (lambda t: (t / "new.py").symlink_to("/tmp/x.py"), "new.py is code that the trial wrote"),
        (lambda t: (t.parent / "site-packages/torch/nn.py").write_text("x"), "torch/nn.py, an installed file"),
        (lambda t: (t.parent / "site-packages/evil.pth").write_text("x"), "evil.pth, an installed file"),
    ],
)
def test_sources_that_change_during_a_trial_are_named(tree, attack, words):
    """R-A1."""
    messages = found(tree, attack)
    assert any(words in message for message in messages), messages


def many(tree):
    for name in TRACKED:
        (tree / name).write_text("other")
    for number in range(20):
        (tree / "pkg" / f"m{number}.py").write_text("")


def test_many_are_summed_up(tree):
    messages = found(tree, many)
    assert len(messages) == 5 and "and 19 more files" in messages[-1]


def outputs(tree):
    (tree / "out" / "code").mkdir(parents=True)
    (tree / "out" / "ckpt.pt").write_bytes(b"weights")
    (tree / "log.txt").write_text("loss 3")
    shutil.copy(tree / "train.py", tree / "out" / "code" / "train.py")
    (tree / "latest").symlink_to("out/ckpt.pt")
    (tree / "pkg" / "cache.bin").write_bytes(b"tokens")


def test_outputs_pass(tree):
    """R-A6: checkpoints, logs, a copy of the code beside them."""
    assert found(tree, outputs) == []
    assert found(tree, lambda t: (t / "out/ckpt.pt").write_bytes(b"later")) == []
