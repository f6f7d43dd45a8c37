"""What verify says after everything that can happen to a promoted commit (R-I1, R-I3), and the hooks that ask it.

Real git, ephemeral ssh keys, no training.
"""

import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from promotion_case import BRANCH, RUN, TRAIN, Case, amend, copy_of, says

from infrarsi.commands.payload import TRAILER
from infrarsi.contract import lock as locks

HOOKS = Path(__file__).parents[3] / "hooks"
RUNS = f"refs/infrarsi/runs/{RUN}"


def test_nothing_happened(case):
    """R-I1: signature and audit are two results, and every part of the audit is checked. R-E1."""
    before = case.everything()
    result = case.verify(BRANCH)
    assert case.everything() == before
    assert (result.decision, result.signature) == ("pass", "good")
    assert "user@example.com" in result.signature_message
    names = [c.name for c in result.checks]
    assert names == [
        "audit",
        "audit signature",
        "contract",
        "result",
        "scope",
        "evidence",
        "calibration",
        "replay",
        "interval",
    ]
    assert {c.status for c in result.checks} == {"pass"}


def test_fast_forward(case):
    case.git("merge", "-q", "--ff-only", BRANCH)
    result = case.verify()
    assert (result.decision, result.signature) == ("pass", "good")


@pytest.mark.parametrize("name", ["promoted", "strict"])
@pytest.mark.parametrize("moved", [False, True])
def test_merge_commit(templates, tmp_path, name, moved):
    """The signature that counts is the promoted commit's, also where the contract requires one."""
    case = copy_of(templates, name, tmp_path / "project")
    if moved:
        case.commit("readme", README__md="More.\n")
    case.git("merge", "-q", "--no-ff", "--no-edit", BRANCH)
    result = case.verify()
    assert (result.decision, result.signature) == ("pass", "good"), result.checks
    assert "a merge of the promoted commit" in result.checks[0].message
    if moved:
        says(result, "pass", "result", "moved by 1 commits")


def test_merge_of_the_other_side_into_the_promoted_branch(case):
    case.commit("readme", README__md="More.\n")
    case.git("switch", "-q", BRANCH)
    case.git("merge", "-q", "--no-edit", "main")
    assert case.verify().decision == "pass"


@pytest.mark.parametrize("path", ["model.py", "README.md"])
def test_an_edit_hidden_in_a_merge_commit(case, path):
    case.git("merge", "-q", "--no-ff", "--no-commit", BRANCH)
    (case.root / path).write_text("x = 0\n")
    case.git("commit", "-q", "-a", "--no-edit")
    says(case.verify(), "fail", "result", path)


def test_a_merge_onto_changed_code(case):
    case.commit("code", train__py=TRAIN + "# more\n")
    case.git("merge", "-q", "--no-ff", "--no-edit", BRANCH)
    says(case.verify(), "inconclusive", "result", "train.py")


def test_message_amended(case):
    text = case.git("log", "-1", "--format=%B", BRANCH).replace("Speed up", "Really speed up")
    amend(case, "--no-gpg-sign", "-m", text)
    result = case.verify()
    assert (result.decision, result.signature) == ("pass", "none")
    assert "lost its signature" in result.signature_message
    says(result, "pass", "result", "the tree is the one that was verified")


def test_message_amended_and_signed_by_another(case, home):
    """It says who signed now; the audit is still the user's."""
    trusted = home / "allowed_signers"
    before = trusted.read_text()
    trusted.write_text(f"{before}other@example.com {(home / 'stranger.pub').read_text()}")
    try:
        case.git("config", "user.signingkey", str(home / "stranger.pub"))
        amend(case, "-S", "-m", case.git("log", "-1", "--format=%B", BRANCH).replace("Speed", "I speed"))
        result = case.verify()
    finally:
        trusted.write_text(before)
    assert (result.decision, result.signature) == ("pass", "good")
    assert "other@example.com" in result.signature_message
    says(result, "pass", "audit signature", "user@example.com")


def test_message_amended_where_the_contract_requires_the_signature(strict):
    assert strict.verify(BRANCH).decision == "pass"
    text = strict.git("log", "-1", "--format=%B", BRANCH).replace("Speed up", "Really speed up")
    amend(strict, "--no-gpg-sign", "-m", text)
    says(strict.verify(), "fail", "signature", "the contract requires a good signature")


@pytest.mark.parametrize("path", ["train.py", "model.py", "README.md"])
def test_amended_with_an_edit(case, path):
    """In scope or out of it: it fails and names the path."""
    amend(case, "--no-edit", **{path.replace(".", "__"): "print(0)\n"})
    assert says(case.verify(), "fail", "result", path).endswith(f"it differs in {path}")


@pytest.mark.parametrize("how", ["cherry-pick", "rebase"])
def test_on_a_base_that_changed_nothing_in_scope(case, how):
    case.commit("one", README__md="More.\n")
    case.commit("two", notes__txt="x\n")
    if how == "rebase":
        case.git("switch", "-q", BRANCH)
        case.git("rebase", "-q", "main")
    else:
        case.git("cherry-pick", BRANCH)
    result = case.verify()
    assert (result.decision, result.signature) == ("pass", "none")
    says(result, "pass", "result", "moved by 2 commits that change 2 paths")


def test_on_a_base_that_changed_files_in_scope(case):
    case.commit("code", train__py=TRAIN + "# more\n")
    case.git("cherry-pick", BRANCH)
    says(case.verify(), "inconclusive", "result", "the new base changed train.py")
    case.git("reset", "-q", "--hard", "HEAD~2")
    case.commit("locked", prepare__py="a = 2\n")
    case.git("cherry-pick", BRANCH)
    says(case.verify(), "inconclusive", "result", "the new base changed prepare.py")


def test_on_a_base_with_another_contract(case):
    """R-A8: the same patch under a contract that it was not measured under."""
    contract = locks.parse((case.root / "infrarsi.lock").read_text())
    case.commit("lock", infrarsi__lock=locks.render(replace(contract, goal="another")))
    case.git("cherry-pick", BRANCH)
    says(case.verify(), "fail", "contract", "another infrarsi.lock")
    case.git("reset", "-q", "--hard", "HEAD~2")
    text = (case.root / "infrarsi.toml").read_text()
    case.commit("toml", infrarsi__toml=text.replace("error_rate = 0.05", "error_rate = 0.2"))
    case.git("cherry-pick", BRANCH)
    says(case.verify(), "fail", "contract", "not what the contract was made from")


@pytest.mark.parametrize("moved", [False, True])
def test_squash_of_this_commit_alone(case, moved):
    if moved:
        case.commit("readme", README__md="More.\n")
    case.git("merge", "-q", "--squash", BRANCH)
    case.git("commit", "-q", "--no-gpg-sign", "--no-edit")
    assert not case.repo.trailers("HEAD", TRAILER)
    result = case.verify()
    assert (result.decision, result.signature) == ("pass", "none")
    says(result, "pass", "audit", "found by patch-id")


@pytest.mark.parametrize("path", ["README.md", "model.py"])
def test_squash_with_something_else(case, path):
    case.git("merge", "-q", "--squash", BRANCH)
    (case.root / path).write_text((case.root / path).read_text() + "# more\n")
    case.git("add", "-A")
    case.git("commit", "-q", "--no-edit")
    assert says(case.verify(), "fail", "audit", f"beside what run {RUN} promoted").endswith(f"it changes {path}")


def test_a_commit_that_was_never_promoted(case):
    case.commit("unrelated", README__md="More.\n")
    assert says(case.verify(), "fail", "audit", "no audit trailer").endswith("no audit of this change")
    says(case.verify("main~2"), "fail", "audit", "without a parent")


def trailer_of(case):
    return f"{TRAILER}: {case.repo.trailers(case.promoted, TRAILER)[0]}"


def test_a_trailer_copied_to_another_commit(case):
    case.commit(f"mine\n\n{trailer_of(case)}", train__py=TRAIN + "# mine\n")
    assert "model.py, train.py" in says(case.verify(), "fail", "result", "not the one that was verified")


def test_a_trailer_copied_to_an_empty_commit_on_top(case):
    """The tree is the verified one; this commit is not what brought it there."""
    case.git("switch", "-q", "--detach", BRANCH)
    case.commit(f"mine too\n\n{trailer_of(case)}")
    says(case.verify(), "fail", "result", "another commit brought it there")


def test_two_trailers(case):
    text = case.git("log", "-1", "--format=%B", BRANCH)
    for second in (trailer_of(case), f"{TRAILER.lower()}: x"):
        case.git("switch", "-q", "main")
        amend(case, "-m", f"{text}\n{second}")
        says(case.verify(), "fail", "audit", "two audit trailers")


@pytest.mark.parametrize("where", ["body", "quoted", "mixed"])
def test_a_trailer_in_the_text_counts_for_nothing(case, where):
    line = trailer_of(case)
    text = {
        "body": f"mine\n\n{line}\n\nThat was it.",
        "quoted": f"mine\n\nHe wrote:\n\n> {line}\n    {line}",
        "mixed": f"mine\n\nas in\n{line}",
    }[where]
    case.commit(text, train__py=TRAIN + "# mine\n")
    assert not case.repo.trailers("HEAD", TRAILER)
    says(case.verify(), "fail", "audit", "no audit trailer")


def test_a_trailer_that_is_none(case):
    case.commit(f"mine\n\n{TRAILER}: bm9uZQ==")
    says(case.verify(), "fail", "audit", "the audit trailer cannot be read")


def test_evidence_missing(case, tmp_path):
    """Inconclusive, with the command that fetches it; after that it passes. A clone has no candidates either."""
    case.git("clone", "-q", f"file://{case.root}", str(tmp_path / "clone"))
    clone = Case(tmp_path / "clone")
    words = says(clone.verify(f"origin/{BRANCH}"), "inconclusive", "evidence", "git fetch <remote>")
    clone.git("fetch", "-q", "origin", words.rsplit(" ", 1)[1])
    assert clone.verify(f"origin/{BRANCH}").decision == "pass"


def test_a_clone_that_never_had_the_promoted_branch(case, tmp_path):
    """Cherry-picked onto a moved base, fetched with its evidence only: the result tree is not there, the patch is."""
    case.commit("readme", README__md="More.\n")
    case.git("cherry-pick", BRANCH)
    url = f"file://{case.root}"
    case.git("clone", "-q", "--single-branch", "--branch", "main", url, str(tmp_path / "clone"))
    clone = Case(tmp_path / "clone")
    clone.git("fetch", "-q", "origin", f"{RUNS}:{RUNS}")
    assert clone.git("cat-file", "-e", case.payload().result_tree, check=False).returncode != 0
    assert clone.verify().decision == "pass"


def test_the_base_is_not_here(case, tmp_path):
    url = f"file://{case.root}"
    case.git("clone", "-q", "--depth=1", "--branch", BRANCH, url, str(tmp_path / "clone"))
    result = Case(tmp_path / "clone").verify()
    assert result.decision in ("fail", "inconclusive") and result.checks[-1].name in ("audit", "contract")


# --- the hooks, with the real verify


@pytest.fixture
def with_tool(tmp_path, monkeypatch):
    """The tool on PATH, as git calls it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "git-infrarsi"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m infrarsi "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(HOOKS.parent))


def test_the_merge_hook_with_the_real_verify(case, with_tool):
    """R-I4: a promoted commit merges; an amended one does not."""
    shutil.copy(HOOKS / "pre-merge-commit", case.root / ".git" / "hooks" / "pre-merge-commit")
    evil = amend(case, "--no-edit", model__py="x = 0\n")
    case.git("switch", "-q", "main")
    done = case.git("merge", "--no-ff", "--no-edit", evil, check=False)
    assert done.returncode != 0 and "merge refused" in done.stderr and "model.py" in done.stderr
    case.git("merge", "--abort", check=False)
    case.git("reset", "-q", "--hard")
    case.git("merge", "-q", "--no-ff", "--no-edit", BRANCH)
    assert case.verify().decision == "pass"


def test_the_server_hook_with_the_real_verify(case, with_tool, tmp_path):
    """R-I4: objects are in quarantine while the hook runs; without the evidence nothing is confirmed."""
    server = tmp_path / "server.git"
    case.git("init", "-q", "--bare", str(server))
    case.git("push", "-q", str(server), "main")
    shutil.copy(HOOKS / "pre-receive", server / "hooks" / "pre-receive")
    done = case.git("push", str(server), BRANCH, check=False)
    said = " ".join(done.stderr.replace("remote:", " ").split())  # however wide the terminal is that git writes to
    assert done.returncode != 0 and "git fetch <remote>" in said, done.stderr
    evil = amend(case, "--no-edit", model__py="x = 0\n")
    done = case.git("push", str(server), f"{evil}:refs/heads/evil", f"{RUNS}:{RUNS}", check=False)
    assert done.returncode != 0 and "model.py" in done.stderr
    case.git("push", "-q", str(server), BRANCH, f"{RUNS}:{RUNS}")
    assert case.git("rev-parse", BRANCH, cwd=server) == case.promoted
