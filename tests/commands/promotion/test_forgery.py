"""Keys nobody vouches for, programs that lie, evidence and audits that were changed and signed again (R-I2)."""

import json
import shutil
from dataclasses import replace

import pytest
from promotion_case import BRANCH, MODEL, TRAIN, says

from infrarsi.codec import canonical, decode, digest, encode
from infrarsi.records import Calibration, Envelope
from infrarsi.vcs.commits import tree_with, write_commit
from infrarsi.vcs.evidence import find_audits, store_audit


def test_an_unknown_key(case, home):
    """R-I2: signed well, by somebody nobody vouches for."""
    case.git("config", "user.signingkey", str(home / "stranger.pub"))
    forged = case.resign()
    result = case.verify(forged)
    assert result.signature == "unknown"
    says(result, "fail", "audit signature", "not a valid key of anyone")


def test_an_expired_key(case, home):
    trusted = home / "allowed_signers"
    before = trusted.read_text()
    name, rest = before.split(" ", 1)
    trusted.write_text(f'{name} valid-before="20200101" {rest}')
    try:
        says(case.verify(BRANCH), "fail", "audit signature", "expired")
    finally:
        trusted.write_text(before)


@pytest.mark.parametrize("scope", ["--local", "--global"])
def test_a_configured_program_that_calls_everything_good_is_not_asked(case, tmp_path, scope, monkeypatch, home):
    liar = tmp_path / "liar"
    liar.write_text('#!/bin/sh\necho "Good \\"git\\" signature for user@example.com with ED25519 key SHA256:x"\n')
    liar.chmod(0o755)
    text = case.git("cat-file", "commit", BRANCH).replace("Speed up", "Slow down")
    tampered = case.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=text + "\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    shutil.copy(home / ".gitconfig", tmp_path / "gitconfig")
    for key in ("gpg.ssh.program", "gpg.program", "gpg.openpgp.program"):
        case.git("config", scope, key, str(liar))
    result = case.verify(tampered)
    assert (result.decision, result.signature) == ("fail", "bad")


def test_evidence_with_one_changed_byte(case):
    data = case.repo.read_blob(case.payload().evidence, "ledger.jsonl")
    changed = data.replace(b'"arrival_seconds":10', b'"arrival_seconds":11', 1)
    says(case.verify(case.resign(evidence=case.evidence(changed))), "fail", "evidence", "is not intact at line")
    says(case.verify(case.resign(evidence=case.evidence(data + b"{"))), "fail", "evidence", "torn line")
    says(case.verify(case.resign(evidence=case.git("rev-parse", "main"))), "fail", "evidence", "holds no ledger")


def on(kind, change):
    return lambda k, body: change(body) if k == kind else None


def one_sample(body):
    if body["id"] == "b2":
        body["steps"][-1]["arrival_seconds"] -= 0.25


def other_commit(body):
    if body["id"] == "b2":
        body["commit"] = "e" * 40


def violated(body):
    if body["id"] == "b0":
        body["outcome"]["kind"] = "rejected"


def no_steps(body):
    if body["id"] == "a1":
        body["steps"] = []


def better_pairs(body):
    for pair in body["verdict"]["pairs"]:
        pair["candidate_step_seconds"] = 0.25


@pytest.mark.parametrize(
    ("kind", "change", "check", "text"),
    [
        ("trial", one_sample, "samples", "trial b2: its samples give"),
        ("trial", other_commit, "samples", "trial b2 ran eeee"),
        ("trial", violated, "samples", "trial b0 ended with rejected"),
        ("trial", no_steps, "samples", "trial a1 has no samples"),
        ("verdict", better_pairs, "samples", "other pairs than those the ledger recorded"),
        ("verdict", lambda b: b["verdict"]["pairs"].pop(), "samples", "other pairs than those the ledger recorded"),
        ("verdict", lambda b: b["verdict"].update(floor=0.0), "verdict", "another floor"),
        ("verdict", lambda b: b["verdict"].update(error_rate=0.2), "verdict", "another error rate"),
        ("finalists", lambda b: b["candidates"].extend(b["candidates"] * 3), "verdict", "over all 4 finalists"),
        ("examination", lambda b: b["examination"]["figures"][1].update(value=0.3), "replay", "3.0e-01 off"),
        ("examination", lambda b: b["examination"]["figures"].clear(), "replay", "no figure"),
        ("examination", lambda b: b.update(subject="7"), "replay", "never examined"),
        ("candidate", lambda b: b.update(tree="1" * 40), "candidate", "measured another tree"),
        ("run-started", lambda b: b.update(contract_digest="1" * 64), "evidence", "another contract digest"),
        ("run-started", lambda b: b.update(base_commit="1" * 40), "evidence", "another base commit"),
        ("run-started", lambda b: b.update(calibration_digest="1" * 64), "evidence", "another calibration digest"),
        ("run-started", lambda b: b["knobs"].clear(), "evidence", "cannot be replayed"),
        ("candidate", lambda b: b.pop("number"), "evidence", "cannot be replayed"),
    ],
)  # fmt: skip
def test_evidence_whose_chain_is_intact_and_whose_facts_are_not(case, kind, change, check, text):
    """R-I1, R-I2: resealed and signed again by someone who holds the key; each fault has its own message."""
    evidence = case.rechained(on(kind, change))
    says(case.verify(case.resign(evidence=evidence)), "fail", check, text)


@pytest.mark.parametrize(
    ("changes", "check", "text"),
    [
        ({"speedup": 2.5, "low": 2.4}, "interval", "the audit says 2.5"),
        ({"pairs": 50}, "verdict", "another number of pairs"),
        ({"error_rate": 0.01}, "verdict", "another error rate"),
        ({"error_rate": 0.2}, "contract", "judged at an error rate of 0.2, 0.05 is allowed"),
        ({"records": ("x",)}, "verdict", "another records"),
        ({"contract": "1" * 64}, "contract", "another digest than the audit"),
        ({"base_tree": "1" * 40}, "contract", "another tree than the audit says"),
        ({"base_commit": "1" * 40}, "contract", "is not here"),
        ({"run": "another"}, "evidence", "another run than the audit"),
        ({"patch_id": "1" * 64}, "result", "not the one that was verified"),
        ({"settings": ()}, "scope", "more than the promoted launch settings"),
    ],
)  # fmt: skip
def test_an_audit_that_says_otherwise(case, changes, check, text):
    decision = "inconclusive" if "base_commit" in changes else "fail"
    says(case.verify(case.resign(**changes)), decision, check, text)


def test_a_tree_that_was_not_measured(case):
    """In scope, well signed, and never run."""
    says(case.verify(case.resign({"train.py": (TRAIN + "# more\n").encode()})), "fail", "candidate", "another tree")


def test_the_toml_may_change_by_the_launch_table_only(case):
    text = case.git("show", f"{BRANCH}:infrarsi.toml") + "\n"
    forged = case.resign({"infrarsi.toml": text.replace("finalists = 2", "finalists = 9").encode()})
    assert "finalists = 2" in text
    says(case.verify(forged), "fail", "scope", "more than the promoted launch settings")


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ({"README.md": b"x\n"}, "README.md is outside"),
        ({"prepare.py": b"a = 2\n"}, "prepare.py is locked"),
        ({"train.py": TRAIN.replace("[1, 2]", "[1, 1]").encode()}, "train.py::get_batch is locked"),
        ({"sitecustomize.py": b"x = 1\n"}, "sitecustomize.py may not change"),
        ({"infrarsi.lock": b"{}\n"}, "infrarsi.lock may not change"),
    ],
)
def test_a_promoted_change_out_of_scope(case, edits, text):
    says(case.verify(case.resign(edits)), "fail", "scope", text)


def test_a_forged_audit_among_the_stored_ones_does_not_pass(case):
    """Someone pushes an audit for his own change, unsigned or with the signature of another payload."""
    commit = case.commit("mine", model__py=MODEL.replace("x20 = 20", "x20 = 0"))
    signature = find_audits(case.repo, case.payload().patch_id)[0][1]
    forged = replace(case.payload(), patch_id=case.repo.patch_id(f"{commit}~1", commit))
    store_audit(case.repo, "forged", canonical(forged), signature)
    says(case.verify(), "fail", "audit signature", "does not fit")


def looser(calibration):
    """The same calibration with an envelope that holds nothing back, or without a floor."""
    envelope = Envelope("reorder", 1.0, 1.0, 1.0, ())
    noise = replace(calibration.noise, floor=0.0)
    return replace(calibration, envelopes=(envelope,)), replace(calibration, noise=noise)


def test_a_sealed_calibration_that_was_changed(case):
    """R-I1, R-I2: the audit names the calibration by its content, so verify computes it again, offline."""
    data = case.repo.read_blob(case.payload().evidence, "ledger.jsonl")
    sealed = decode(Calibration, json.loads(case.repo.read_blob(case.payload().evidence, "calibration.json")))
    assert digest(sealed) == case.payload().calibration
    for changed in looser(sealed):
        evidence = case.evidence(data, canonical(changed) + b"\n")
        says(case.verify(case.resign(evidence=evidence)), "fail", "calibration", "not the one that the audit names")
    spaced = json.dumps(encode(sealed), indent=1).encode()
    evidence = case.evidence(data, spaced)
    says(case.verify(case.resign(evidence=evidence)), "fail", "calibration", "not the one that the audit names")
    ledger_only = write_commit(case.repo, tree_with(case.repo, None, {"ledger.jsonl": data}), [], "evidence")
    says(case.verify(case.resign(evidence=ledger_only)), "fail", "calibration", "holds no calibration")


def test_a_calibration_that_was_changed_everywhere_by_someone_who_holds_the_key(case):
    """R-I1: the floor of the verdict is the calibration's, also where all digests agree."""
    sealed = decode(Calibration, json.loads(case.repo.read_blob(case.payload().evidence, "calibration.json")))
    _, changed = looser(sealed)
    rechained = case.rechained(on("run-started", lambda b: b.update(calibration_digest=digest(changed))))
    evidence = case.evidence(case.repo.read_blob(rechained, "ledger.jsonl"), canonical(changed) + b"\n")
    forged = case.resign(evidence=evidence, calibration=digest(changed))
    says(case.verify(forged), "fail", "calibration", "another floor than its calibration")


def test_the_calibration_of_an_honest_run_is_recomputed(case):
    (found,) = [c for c in case.verify(BRANCH).checks if c.name == "calibration"]
    assert found.status == "pass"
