"""Patches are diffs that git applies, go together when composed, and respect scope, class and hardware."""

import subprocess
from pathlib import Path

import pytest

from infrarsi.errors import ContractError, UsageError
from infrarsi.propose.catalogue import by_id, device_kind, load
from infrarsi.propose.patches import compose, propose_patches, unified_diff
from infrarsi.propose.patchfile import read_patch_files
from infrarsi.records import NUMERICS_ORDER, Hardware, Scope

TRAIN = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from model import Net


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def main(batches, accum):
    model = DDP(Net())
    optimizer = make_optimizer(model)
    for step in range(10):
        optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for micro in range(accum):
            x = batches[step * accum + micro]
            loss = model(x) / accum
            loss.backward()
            total += loss.item()
        optimizer.step()
    print(total)
"""
MODEL = """\
import math
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def forward(self, q, k, v):
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        att = F.softmax(att, dim=-1)
        return att @ v"""  # no newline at the end
FILES = {"src/train.py": TRAIN, "src/model.py": MODEL, "README.md": "# nothing\n"}
BOTH_CPU = Hardware("cpu", (), 4, 2**34, (), 0, "", "2.8", "", "3.11")


def apply(folder: Path, diff: str) -> None:
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=folder, check=True, capture_output=True)


def test_every_diff_is_applied_by_git(tmp_path: Path) -> None:
    patches = propose_patches(FILES)
    assert {patch.id for patch in patches} >= {"sdpa", "fused_adamw", "no_sync", "remove_item_sync", "set_to_none"}
    for patch in patches:
        folder = tmp_path / patch.id
        for path, text in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        apply(folder, patch.diff)
        expected = compose(FILES, [patch.id])
        assert expected and {path: (folder / path).read_text() for path in expected} == expected
        assert patch.source == "catalogue" and patch.claims and patch.catalogue_id in by_id()


def test_composed_patches_touch_neighbouring_lines_without_conflict() -> None:
    ids = [patch.id for patch in propose_patches(FILES)]
    edits = compose(FILES, list(reversed(ids)))
    assert edits == compose(FILES, ids) and set(edits) == {"src/train.py", "src/model.py"}
    train = edits["src/train.py"]
    for piece in (
        "fused=True",
        "gradient_as_bucket_view=True",
        "no_sync()",
        "set_to_none=True",
        "loss.detach().double()",
    ):
        assert piece in train
    assert propose_patches({**FILES, **edits}) == ()
    assert compose(FILES, ["from elsewhere"]) == {}


def test_the_numerics_class_is_a_limit() -> None:
    for allowed in NUMERICS_ORDER:
        limit = NUMERICS_ORDER.index(allowed)
        patches = propose_patches(FILES, allowed=allowed)
        assert all(NUMERICS_ORDER.index(patch.numerics) <= limit for patch in patches)
    assert "autocast" in {patch.id for patch in propose_patches(FILES, allowed="reduced")}


def test_locked_paths_and_symbols_are_not_edited() -> None:
    scope = Scope(("src/*.py",), ("src/model.py", "src/train.py::make_optimizer"))
    ids = {patch.id for patch in propose_patches(FILES, scope=scope)}
    assert "sdpa" not in ids and "fused_adamw" not in ids and "no_sync" in ids
    assert propose_patches(FILES, scope=Scope(("other/*.py",))) == ()
    assert compose(FILES, ["sdpa", "fused_adamw"], scope=scope) == {}


def test_what_cannot_pay_on_this_hardware_is_left_out() -> None:
    files = {"a.py": "from torch.utils.data import DataLoader\nl = DataLoader(d)\n"}
    cuda = Hardware("cpu", (), 4, 2**34, ("NVIDIA A100",), 2**36, "", "2.8", "", "3.11")
    rocm = Hardware("cpu", (), 4, 2**34, ("AMD Instinct MI300X",), 2**37, "", "2.8", "", "3.11")
    assert [device_kind(item) for item in (BOTH_CPU, cuda, rocm)] == ["cpu", "cuda", "rocm"]
    assert propose_patches(files, hardware=BOTH_CPU) == ()
    assert [patch.id for patch in propose_patches(files, hardware=cuda)] == ["pin_memory"]


def test_no_sync_needs_a_wrapped_model_somewhere() -> None:
    loop = TRAIN.replace("from torch.nn.parallel import DistributedDataParallel as DDP\n", "").replace(
        "DDP(Net())", "Net()"
    )
    assert "no_sync" not in {patch.id for patch in propose_patches({"train.py": loop})}
    wrap = "from torch.nn.parallel import DistributedDataParallel\n"
    assert "no_sync" in {patch.id for patch in propose_patches({"train.py": loop, "wrap.py": wrap})}


def test_diffs_of_odd_texts(tmp_path: Path) -> None:
    """Form feeds and carriage returns belong to a line; a missing last newline is said."""
    for number, (before, after) in enumerate(
        [
            ("a\x0cb\nc\n", "a\x0cb\nd\n"),
            ("a\r\nb\r\n", "a\r\nc\r\n"),
            ("a\nb", "a\nc"),
            ("a\nb", "a\nb\nc\n"),
            ("a\n", "b"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "f.py").write_bytes(before.encode())
        apply(folder, unified_diff("f.py", before, after))
        assert (folder / "f.py").read_bytes() == after.encode()


def test_the_catalogue_is_whole() -> None:
    entries = load()
    assert len(entries) == 101 and len(by_id()) == len(entries)
    for entry in entries:
        assert entry.numerics in NUMERICS_ORDER and 0 < entry.confidence < 1 and entry.source
        assert entry.time_range[0] <= entry.time_factor <= entry.time_range[1]
        assert entry.claim.time_factor == entry.time_factor and entry.evidence in "MDP"


def test_patch_files_plain_and_mailed(tmp_path: Path) -> None:
    diff = unified_diff("src/model.py", MODEL, MODEL.replace("-1)\n        return", "-1)\n\n        return"))
    plain, mailed = tmp_path / "My idea.patch", tmp_path / "0001-x.patch"
    plain.write_text(diff)
    mailed.write_text(
        f"From 0123 Mon\nSubject: [PATCH 1/2] Faster attention\n\nwords\n---\n f | 1 +\n\n{diff}-- \n2.43.0\n\n"
    )
    one, two = read_patch_files([plain, mailed])
    assert one.id.startswith("my_idea_") and one.numerics == "reorder" and one.source == "patch-file:My idea.patch"
    assert two.title == "Faster attention" and two.diff == one.diff == diff and "src/model.py" in one.why
    assert read_patch_files([plain], numerics="reduced")[0].numerics == "reduced"


def test_a_state_map_stands_before_the_diff(tmp_path: Path) -> None:
    diff = unified_diff("model.py", MODEL, MODEL.replace("-1)\n        return", "-1)\n\n        return"))
    path, bare, broken = (tmp_path / name for name in ("qkv.patch", "bare.patch", "broken.patch"))
    bare.write_text(diff)
    path.write_text(
        f"Subject: Fuse\n\nState-Map: *.qkv.weight = *.{{q,k}}.weight; dim 0\nState-Map: b = c; dim 1\n\n{diff}"
    )
    broken.write_text(f"State-Map: qkv is q and k\n{diff}")
    one, two = read_patch_files([path, bare])
    assert [(a.kind, a.target, a.value) for a in one.state_map] == [
        ("state_map", "*.qkv.weight", "*.{q,k}.weight; dim 0"),
        ("state_map", "b", "c; dim 1"),
    ]
    assert two.state_map == () and one.diff == two.diff and one.id.rpartition("_")[2] != two.id.rpartition("_")[2]
    with pytest.raises(ContractError, match="state map") as caught:
        read_patch_files([broken])
    assert "write: State-Map:" in caught.value.hint


@pytest.mark.parametrize(
    "content", [b"", b"just words\n", b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n", b"\xff\xfe\x00binary"]
)
def test_broken_patch_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.patch"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_patch_files([path])
    assert "x.patch" in caught.value.what and caught.value.hint
    with pytest.raises(UsageError):
        read_patch_files([tmp_path / "absent.patch"])
