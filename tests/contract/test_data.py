"""Locked data: every byte, folders file by file, links followed."""

import hashlib
import os
import time

import pytest

from infrarsi.contract.data import check_data, data_signature, data_touched, digest_data
from infrarsi.errors import ContractError, UsageError


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "repo"
    (folder / "data" / "shards").mkdir(parents=True)
    (folder / "data" / "train.bin").write_bytes(b"abc" * 1000)
    (folder / "data" / "shards" / "0.bin").write_bytes(b"0")
    return folder


def test_folders_are_locked_file_by_file(root):
    digests = digest_data(root, ["data", "data/train.bin"])
    assert [(d.name, d.bytes) for d in digests] == [("data/shards/0.bin", 1), ("data/train.bin", 3000)]
    assert digests[1].sha256 == hashlib.sha256(b"abc" * 1000).hexdigest()
    assert check_data(root, digests) == ()


@pytest.mark.parametrize(
    ("content", "word"), [(b"abd" + b"abc" * 999, "other bytes"), (b"", "another size"), (None, "missing")]
)
def test_a_changed_byte_is_named(root, content, word):
    """R-A1, R-A10."""
    digests = digest_data(root, ["data"])
    path = root / "data" / "train.bin"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    (violation,) = check_data(root, digests)
    assert word in violation.message and "data/train.bin" in violation.message
    assert violation.ring == "scope"


def test_a_link_is_locked_by_the_bytes_behind_it(root, tmp_path):
    outside = tmp_path / "big"
    outside.mkdir()
    (outside / "x.bin").write_bytes(b"x")
    (outside / "loop").symlink_to(outside)
    (root / "linked").symlink_to(outside)
    digests = digest_data(root, ["linked"])
    assert [d.name for d in digests] == ["linked/x.bin"]
    (outside / "x.bin").write_bytes(b"y")
    assert check_data(root, digests)


def test_missing_and_outside_names_are_refused(root):
    with pytest.raises(ContractError, match="does not exist"):
        digest_data(root, ["nothing.bin"])
    with pytest.raises(UsageError, match="not below the repository"):
        digest_data(root, ["../data"])
    with pytest.raises(UsageError, match="not below the repository"):
        digest_data(root, ["/etc/passwd"])


def test_data_that_is_put_back_was_written_all_the_same(root):
    """R-A1: same bytes, same size, same modification time, same inode."""
    names, path = ["data/train.bin"], root / "data/train.bin"
    before, status, content = data_signature(root, names), path.stat(), path.read_bytes()
    time.sleep(0.02)
    with path.open("r+b") as file:
        file.write(b"xyz")
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (status.st_mtime_ns, status.st_ino)
    (violation,) = data_touched(before, data_signature(root, names))
    assert "data/train.bin was written during the trial" in violation.message
    assert data_touched(before, before) == ()
