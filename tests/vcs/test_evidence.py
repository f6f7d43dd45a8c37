"""Sealed runs, audits, the archive, and the promoted commit."""

import json

import pytest

from infrarsi.errors import GitError
from infrarsi.vcs.commits import build_candidate
from infrarsi.vcs.evidence import archive_candidates, find_audit_by_patch_id, find_audits, read, seal, store_audit
from infrarsi.vcs.promote import promote
from infrarsi.vcs.signing import sign_bytes, verify_commit

MESSAGE = "Speed up training 1.50x\n\nMeasured.\n\nInfrarsi-Run: r1\nInfrarsi-Contract: abc\n"


def fails(call, *args, **kwargs):
    with pytest.raises(GitError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def test_a_run_is_sealed_step_by_step(sandbox):
    """R-E2: each checkpoint is a commit on the one before; the same again is no new one."""
    repo, before = sandbox.repo, sandbox.everything()
    first = seal(repo, "r1", {"ledger.jsonl": b"{}\n", "logs/r1-1.log": b"\xff\0"})
    assert seal(repo, "r1", {"ledger.jsonl": b"{}\n", "logs/r1-1.log": b"\xff\0"}) == first
    second = seal(repo, "r1", {"ledger.jsonl": b"{}\n{}\n"})
    assert repo.parents(second) == (first,) and repo.for_each_ref("refs/infrarsi/runs") == {
        "refs/infrarsi/runs/r1": second
    }
    assert read(repo, "r1", "ledger.jsonl") == b"{}\n{}\n" and read(repo, first, "logs/r1-1.log") == b"\xff\0"
    assert read(repo, "r1", "nope") is None
    assert fails(read, repo, "r9", "x") == "evidence-missing" and fails(seal, repo, "../r", {}) == "bad-name"
    assert sandbox.everything() == before


def test_evidence_travels(sandbox, tmp_path):
    """Pushable and fetchable; a clone without it is told how to get it."""
    commit = seal(sandbox.repo, "r1", {"ledger.jsonl": b"{}\n"})
    sandbox.git("clone", "-q", f"file://{sandbox.root}", str(tmp_path / "clone"))
    clone = type(sandbox)(tmp_path / "clone")
    with pytest.raises(GitError) as caught:
        read(clone.repo, commit, "ledger.jsonl")
    refspec = caught.value.hint.split("'")[1]
    clone.git("fetch", "-q", "origin", refspec)
    assert read(clone.repo, "r1", "ledger.jsonl") == read(clone.repo, commit, "ledger.jsonl") == b"{}\n"


def test_an_audit_is_found_by_patch_id_and_a_forged_one_does_not_hide_it(signer):
    """R-I2."""
    repo = signer.repo
    payload = json.dumps({"patch_id": "p1"}).encode()
    signature = sign_bytes(repo, payload)
    store_audit(repo, "r1", payload, signature)
    store_audit(repo, "r2", json.dumps({"patch_id": "p1", "speedup": 9}).encode(), signature)
    store_audit(repo, "r3", b"not json", "x")
    store_audit(repo, "r1", json.dumps({"patch_id": "p2"}).encode(), "later")
    assert find_audit_by_patch_id(repo, "p1") == (payload, signature)
    assert len(find_audits(repo, "p1")) == 2
    assert find_audit_by_patch_id(repo, "p3") is None and find_audit_by_patch_id(repo, "") is None


def test_losers_move_to_the_archive(sandbox, tmp_path):
    repo = sandbox.repo
    commits = [build_candidate(repo, repo.head(), [], {"n": str(n).encode()}, "c") for n in range(4)]
    for number, commit in enumerate(commits):
        repo.update_ref(f"refs/heads/infrarsi/r1/{number}", commit)
    repo.update_ref("refs/heads/infrarsi/r10/0", commits[0])
    sandbox.git("worktree", "add", "-q", str(tmp_path / "look"), "infrarsi/r1/3")
    assert archive_candidates(repo, "r1", keep=(1,)) == (0, 2)
    assert archive_candidates(repo, "r1", keep=(1,)) == ()
    assert repo.for_each_ref("refs/infrarsi/archive") == {
        "refs/infrarsi/archive/r1/0": commits[0],
        "refs/infrarsi/archive/r1/2": commits[2],
    }
    assert set(repo.for_each_ref("refs/heads/infrarsi/")) == {
        "refs/heads/infrarsi/r1/1",
        "refs/heads/infrarsi/r1/3",
        "refs/heads/infrarsi/r10/0",
    }
    sandbox.git("gc", "-q", "--prune=now")
    assert repo.read_blob(commits[2], "n") == b"2"


def candidate_tree(repo, text=b"fast\n"):
    return repo.tree_of(build_candidate(repo, repo.head(), [], {"train.py": text}, "c"))


def test_the_promoted_commit_is_the_users(signer):
    """R-E1, R-I1: her name, her signature, on a branch of its own; nothing checked out moves."""
    repo, before = signer.repo, signer.everything()
    commit = promote(repo, base=repo.head(), tree=candidate_tree(repo), message=MESSAGE)
    assert signer.everything() == before
    assert repo.read_ref("refs/heads/infrarsi/promoted") == commit and repo.parents(commit) == (repo.head(),)
    assert signer.git("log", "-1", "--format=%an %ae %G?", commit) == "A User user@example.com G"
    assert verify_commit(repo, commit).status == "good" and repo.trailers(commit, "infrarsi-run") == ("r1",)
    signer.git("merge", "-q", "--ff-only", "infrarsi/promoted")
    again = promote(repo, base=repo.head(), tree=candidate_tree(repo, b"faster\n"), message=MESSAGE)
    assert repo.parents(again) == (commit,)


def test_promotion_loses_nothing(signer):
    repo = signer.repo
    kept = promote(repo, base=repo.head(), tree=candidate_tree(repo), message=MESSAGE)
    assert fails(promote, repo, base=repo.head(), tree=candidate_tree(repo, b"x\n"), message=MESSAGE) == "branch-taken"
    signer.git("checkout", "-q", "infrarsi/promoted")
    assert fails(promote, repo, base=kept, tree=candidate_tree(repo, b"y\n"), message=MESSAGE) == "checked-out"
    assert repo.read_ref("refs/heads/infrarsi/promoted") == kept


def test_promotion_needs_a_key(sandbox):
    repo = sandbox.repo
    assert fails(promote, repo, base=repo.head(), tree=candidate_tree(repo), message=MESSAGE) == "no-signing-key"
    assert repo.read_ref("refs/heads/infrarsi/promoted") is None


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE + "Infrarsi-Run: r2\n",
        MESSAGE.replace("Measured.", "Infrarsi-Run: r2"),
        MESSAGE.replace("r1\n", "r1\nsome prose\n"),
        MESSAGE + "\nSigned by hand\n",
    ],
)
def test_trailers_cannot_be_injected(signer, message):
    """R-I2."""
    repo = signer.repo
    assert fails(promote, repo, base=repo.head(), tree=candidate_tree(repo), message=message) == "trailers"
