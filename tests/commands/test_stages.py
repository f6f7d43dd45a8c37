"""The five stages on a training whose speed a setting and a patch really change; nothing of the user's is touched."""

import json
import tomllib

import pytest
from training_case import TRAINER, patch_of

pytestmark = pytest.mark.real
SENTENCE = "make this training faster, change nothing it learns"


def test_the_five_stages_and_a_second_round(fresh, tmp_path):
    """R-E1: every command leaves HEAD, index, tracked, untracked and ignored bytes alone."""
    case = fresh
    before = case.everything()
    case.write("infrarsi.toml", case.toml())
    made = case.say("init", "--json").result["result"]
    assert made["created"]
    assert (case.root / "infrarsi.toml").read_text() == case.toml(), "what the user wrote is locked as it stands"
    after = case.everything()
    for name in ("infrarsi.toml", "infrarsi.lock"):
        del after["files"][name]
    assert after == before, "init adds its two files, nothing else"
    case.git("add", "infrarsi.toml", "infrarsi.lock")
    case.git("commit", "-q", "-m", "contract")
    head = case.git("rev-parse", "HEAD")

    calibration = case.ok("doctor", "--repeats", "3")["calibration"]
    assert calibration["step_seconds"] == pytest.approx(0.010, rel=0.3)
    assert case.ok("status")["next_command"] == "git infrarsi run"

    source = TRAINER.read_text()
    patch = tmp_path / "twice.patch"
    patch.write_text(patch_of("train.py", source, source.replace("SPEED = 1.0", "SPEED = 0.5")))
    useless = tmp_path / "useless.patch"
    useless.write_text(patch_of("nothing.py", "a\n", "b\n"))
    ran = case.ok("run", "--trials", "6", "--patch", str(patch), "--patch", str(useless))
    verdict = ran["verdict"]
    assert verdict["decision"] == "accepted"
    assert len(verdict["candidate"]["patches"]) == 1
    assert verdict["low"] > 1.5
    assert verdict["speedup"] < 3.5
    assert any("README.md" in w for w in ran["warnings"]), "what is dirty outside the scope is said"
    refused = [line.body for line in case.lines() if line.kind == "patch-refused"]
    assert len(refused) == 1
    assert refused[0]["reason"]

    reported = case.ok("report")
    assert reported["run"] == ran["run"]
    with case.untouched():
        assert f"{verdict['speedup']:.2f}x" in case.say("report", "--markdown").out
        page = tmp_path / "report.html"
        assert case.say("report", "--html", str(page)).code == 0
        assert "<html" in page.read_text()
    applied = case.ok("apply")
    assert case.git("rev-parse", "HEAD") == head
    assert case.git("rev-parse", "infrarsi/promoted") == applied["commit"]
    assert not case.ok("apply")["created"], "the same promotion is made once"
    checked = case.ok("verify", "infrarsi/promoted")
    assert (checked["decision"], checked["signature"]) == ("pass", "good")
    with case.untouched():
        assert case.say("verify", "HEAD").code == 1

    case.git("merge", "-q", "--ff-only", "infrarsi/promoted")
    promoted = tomllib.loads((case.root / "infrarsi.toml").read_text())
    assert "# my own choice" in (case.root / "infrarsi.toml").read_text()
    assert "SPEED = 0.5" in (case.root / "train.py").read_text()
    calibration = case.ok("doctor", "--repeats", "2")["calibration"]
    assert calibration["step_seconds"] < 0.007, "the second round starts where the first one ended"
    again = case.ok("run", "--trials", "2")
    started = json.loads(case.ledgers()[-1].read_text().splitlines()[0])["body"]
    flags = {a["target"]: a["value"] for a in started["launch"] if a["kind"] == "flag"}
    assert flags == promoted["launch"].get("flags", {})
    assert again["verdict"] is None or again["verdict"]["speedup"] < 1.7, "nothing is gained twice"
    assert case.processes() == []
    assert case.git("worktree", "list").count("\n") == 0


def test_init_from_a_sentence(fresh):
    """What init proposes is what it observed; again it changes nothing, and never overwrites silently."""
    case = fresh
    said = case.say(
        "init", SENTENCE, "--command", "python3 train.py --step-ms=10 --data=data/train.bin", "--python", case.python,
        "--json",
    )  # fmt: skip
    assert said.code == 0, said.out + said.err
    made = said.result["result"]
    assert made["contract"]["goal"] == SENTENCE
    assert [d["name"] for d in made["contract"]["workload"]["data"]] == ["data/train.bin"]
    assert made["contract"]["workload"]["rows_per_step"] == 32
    assert "micro_batch" in [k["name"] for k in made["intent"]["knobs"]]

    files = [case.root / name for name in ("infrarsi.toml", "infrarsi.lock")]
    first = [f.read_bytes() for f in files]
    again = case.ok("init")
    assert not again["created"]
    assert again["digest"] == made["digest"]
    assert not case.ok("init", SENTENCE)["created"]

    with case.untouched():
        other = case.say("init", "make it twice as fast", "--json")
    assert other.code == 128
    assert other.result["error"]["code"] == "contract-exists"
    assert "--force" in other.result["error"]["hint"]

    edited = b"# edited by hand\n" + first[0]
    files[0].write_bytes(edited)
    forced = case.say(
        "init", "--force", SENTENCE, "--command", "python3 train.py --step-ms=10", "--python", case.python
    )
    assert forced.code == 0, forced.err
    assert (case.root / "infrarsi.toml.orig").read_bytes() == edited, "an edit is kept beside the new contract"
    files[1].unlink()
    with case.untouched():
        refused = case.say("init", "something else", "--json")
    assert refused.code == 128
    assert "would overwrite" in refused.result["error"]["why"]


def test_a_contract_that_is_edited_or_not_committed_is_refused(locked):
    """R-A8: neither the wishes nor the lock can be loosened between two commands."""
    case = locked
    toml = (case.root / "infrarsi.toml").read_text()
    case.write("infrarsi.toml", toml.replace("trials = 3", "trials = 4"))
    for verb in ("doctor", "run"):
        with case.untouched():
            said = case.say(verb, "--json")
        assert said.code == 128
        assert "differs from the committed one" in said.result["error"]["what"]
    case.git("commit", "-q", "-m", "more trials", "infrarsi.toml")
    with case.untouched():
        said = case.say("run", "--json")
    assert said.code == 128
    assert "init --force" in said.result["error"]["hint"]


def test_cheats_and_failures_end_no_run(calibrated, tmp_path):
    """R-A3, R-C3: each is refused with its reason and its real seconds, and what remains is no verdict."""
    case = calibrated
    case.write("infrarsi.toml", case.toml(knobs=""))
    case.git("commit", "-q", "-m", "patches only", "infrarsi.toml")
    source = TRAINER.read_text()
    fast = source.replace("SPEED = 1.0", "SPEED = 0.3")
    edits = {
        "rows": fast.replace('"--skip-rows", type=int, default=0', '"--skip-rows", type=int, default=8'),
        "crash": fast.replace("GLOBAL_ROWS = 32", "GLOBAL_ROWS = 1 // 0"),
    }
    args = []
    for name, text in edits.items():
        (tmp_path / f"{name}.patch").write_text(patch_of("train.py", source, text))
        args += ["--patch", str(tmp_path / f"{name}.patch")]
    result = case.ok("run", "--trials", "4", *args)
    assert result["verdict"] is None
    said = {t.candidate.patches: t for t in case.trials()}
    assert said.pop(()).outcome.kind == "ok"
    assert {t.outcome.kind for t in said.values()} == {"rejected", "crash"}
    messages = " ".join(t.outcome.message for t in said.values())
    assert "consumed 24 rows; the contract has 32" in messages
    assert "ZeroDivisionError" in messages
    assert all(t.wall_seconds > 0 for t in said.values())
    assert case.say("apply").code == 1
    assert case.ok("status")["next_command"] == "git infrarsi report"


def test_every_candidate_runs_out_of_memory(fresh):
    """R-C2: only a true OOM is censored evidence; the run ends cleanly, without a verdict."""
    case = fresh
    case.commit("contract", **{"infrarsi.toml": case.toml(budget="memory_gb = 0.1\ntrials = 4")})
    assert case.say("init").code == 0
    case.commit("lock")
    result = case.ok("run")
    assert result["verdict"] is None
    kinds = {t.candidate.is_baseline: set() for t in case.trials()}
    for trial in case.trials():
        kinds[trial.candidate.is_baseline].add(trial.outcome.kind)
    assert kinds[True] == {"ok"}
    assert kinds.get(False, {"oom"}) == {"oom"}
    assert result["reason"]


def test_from_a_subfolder_on_a_detached_head(locked):
    """R-E6: HEAD is any commit, and the folder any in the repository."""
    locked.git("checkout", "-q", "--detach")
    with locked.untouched():
        assert locked.say("init", folder="scratch").code == 0
        done = locked.say("doctor", "--repeats", "2", "--json", folder="scratch")
        assert done.code == 0, done.out
        assert locked.say("status", "--json", folder="scratch").result["result"]["calibrated"]
