"""An accepted verdict becomes one signed commit; everything else is refused or left alone. Real git, no training."""

from dataclasses import replace

import pytest
from promotion_case import BRANCH, RUN, Case

from infrarsi.commands.payload import TRAILER
from infrarsi.commands.workspace import load
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.statemap import layouts
from infrarsi.errors import ContractError, GitError, NegativeVerdict
from infrarsi.records import Assignment

pytestmark = pytest.mark.usefixtures("home")


def test_apply_makes_one_signed_commit_and_touches_nothing_else(measured):
    """R-E1: HEAD, index and files are the same; the branch holds one commit on the base with patch and settings."""
    before = measured.everything()
    result = measured.apply()
    assert measured.everything() == before
    assert result.created and result.commit == measured.promoted and result.branch == BRANCH
    assert measured.git("rev-parse", f"{BRANCH}~1") == measured.git("rev-parse", "main")
    assert {c.path for c in result.changes} == {"model.py", "infrarsi.toml"}
    assert result.settings == (Assignment("flag", "--batch_size", 16),)
    assert any("merge --ff-only" in n for n in result.notes)
    assert len(measured.repo.trailers(BRANCH, TRAILER)) == 1
    assert "# fused" in measured.git("show", f"{BRANCH}:model.py")
    assert "--batch_size" in measured.git("show", f"{BRANCH}:infrarsi.toml").split("[launch", 1)[1]


def test_what_a_patch_lays_out_otherwise_is_promoted_with_it(tmp_path):
    """The next run's baseline has the new parameters, and the contract the old ones: the map stands beside the code."""
    state_map = (Assignment("state_map", "fused", "w; dim 0"),)
    case = Case(tmp_path / "project").create().run(state_map=state_map)
    result = case.apply()
    assert result.settings == (Assignment("flag", "--batch_size", 16), *state_map)
    case.git("merge", "-q", "--ff-only", BRANCH)
    workspace = load(case.root)
    assert set(workspace.intent.launch.assignments) == set(result.settings)
    assert layouts(workspace.intent.launch.assignments, workspace.contract.invariants.parameters)[0].new == "fused"
    checked = case.verify()
    assert (checked.decision, checked.signature) == ("pass", "good"), checked.checks


def test_apply_twice_is_once(case):
    before, tip = case.everything(), case.promoted
    again = case.apply()
    assert (again.created, again.commit, case.promoted) == (False, tip, tip)
    assert case.everything() == before
    case.git("merge", "-q", "--ff-only", BRANCH)
    assert case.apply().commit == tip, "also after it was taken"


def test_apply_after_head_moved_promotes_what_was_measured(measured):
    """The commit stands on the run's baseline, and the note says how to take it."""
    base = measured.git("rev-parse", "main")
    measured.commit("readme", README__md="More.\n")
    result = measured.apply()
    assert measured.git("rev-parse", f"{result.commit}~1") == base
    assert any(f"git merge {BRANCH}, then git infrarsi verify HEAD" in n for n in result.notes)


def test_apply_on_a_dirty_tree(measured):
    """R-E1, R-E4: refused for changes in scope; others stay as they are, staged or not."""
    (measured.root / "model.py").write_text("x = 0\n")
    with pytest.raises(GitError, match=r"uncommitted changes in scope: model\.py"):
        measured.apply()
    measured.git("checkout", "-q", "model.py")
    (measured.root / "README.md").write_text("staged\n")
    measured.git("add", "README.md")
    (measured.root / "new.txt").write_text("untracked\n")
    before = measured.everything()
    measured.apply()
    assert measured.everything() == before


@pytest.mark.parametrize("seconds", [1.0, 0.985])
def test_apply_refuses_without_an_accepted_verdict(tmp_path, seconds):
    case = Case(tmp_path / "project").create().run(seconds=seconds, seal=False)
    with pytest.raises(NegativeVerdict, match="no accepted verdict") as caught:
        case.apply()
    assert caught.value.code == "no-verdict" and caught.value.why
    assert not case.repo.for_each_ref(f"refs/heads/{BRANCH}")


def test_apply_refuses_an_unfinished_run(tmp_path):
    case = Case(tmp_path / "project").create().run(ended=False, seal=False)
    with pytest.raises(NegativeVerdict, match="not finished") as caught:
        case.apply()
    assert caught.value.hint == "git infrarsi run"


def test_apply_refuses_another_contract(measured):
    """R-A8: also a consistent pair of toml and lock is another contract than the one measured under."""
    text = (measured.root / "infrarsi.toml").read_text()
    loose = text.replace("error_rate = 0.05", "error_rate = 0.2")
    assert loose != text
    measured.commit("loosen", infrarsi__toml=loose)
    with pytest.raises(ContractError, match=r"infrarsi\.toml was changed"):
        measured.apply()
    contract = locks.parse((measured.root / "infrarsi.lock").read_text())
    wanted = intents.parse(loose)
    contract = replace(contract, budget=wanted.budget, intent_digest=intents.digest_of(wanted))
    measured.commit("and the lock", infrarsi__lock=locks.render(contract))
    with pytest.raises(ContractError, match="the contract changed since this run") as caught:
        measured.apply()
    assert caught.value.code == "contract-changed"
    assert not measured.repo.for_each_ref("refs/infrarsi/audits/")


def test_apply_refuses_a_branch_that_is_checked_out(measured):
    measured.git("switch", "-q", "-c", BRANCH)
    with pytest.raises(GitError, match="is checked out") as caught:
        measured.apply()
    assert caught.value.code == "checked-out" and "switch" in caught.value.hint
    assert not measured.repo.for_each_ref("refs/infrarsi/audits/"), "nothing was signed"


@pytest.mark.parametrize("same_run", [False, True])
def test_apply_refuses_a_branch_with_another_promotion(measured, same_run):
    """Also one that names the same run and holds another tree."""
    measured.git("switch", "-q", "-c", BRANCH)
    other = measured.commit(f"other\n\nInfrarsi-Run: {RUN if same_run else 'another'}", model__py="x = 0\n")
    measured.git("switch", "-q", "main")
    with pytest.raises(GitError, match="another promotion") as caught:
        measured.apply()
    assert caught.value.code == "branch-taken" and measured.promoted == other
    assert measured.apply(branch="infrarsi/second").branch == "infrarsi/second"


def test_apply_moves_a_branch_whose_promotion_was_taken(measured):
    measured.git("branch", BRANCH, "main~1")
    assert measured.apply().commit == measured.promoted


@pytest.mark.parametrize("setup", ["no gpg key", "no ssh key", "missing key file"])
def test_apply_without_a_key_says_how_to_make_one(measured, setup, tmp_path, monkeypatch):
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    text = "[user]\n\tname = A User\n\temail = user@example.com\n"
    text += "\tsigningkey = /nowhere/key.pub\n" if setup == "missing key file" else ""
    text += "" if setup == "no gpg key" else "[gpg]\n\tformat = ssh\n"
    config = tmp_path / "gitconfig"
    config.write_text(text)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    with pytest.raises(GitError, match="no key to sign with") as caught:
        measured.apply()
    assert caught.value.code == "no-signing-key"
    first, second = caught.value.hint.splitlines()
    assert "ssh-keygen" in first and "git config --global gpg.format ssh" in second
    assert not measured.repo.for_each_ref(f"refs/heads/{BRANCH}")


def test_apply_says_when_nobody_can_verify(measured, tmp_path, monkeypatch, home):
    config = tmp_path / "gitconfig"
    config.write_text((home / ".gitconfig").read_text().replace("allowedSignersFile", "nothing"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    assert any("nobody can verify it" in note for note in measured.apply().notes)
