"""A repository whose run has ended with an accepted verdict: real git, real ledger, records made by hand."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from infrarsi.codec import canonical, digest, encode
from infrarsi.commands import apply as applying
from infrarsi.commands import verify as verifying
from infrarsi.commands.payload import NAMESPACE, TRAILER, Audit, decode_trailer, encode_trailer, message, parse_payload
from infrarsi.commands.seal import seal_run
from infrarsi.commands.workspace import CommitReader, load
from infrarsi.contract import intent as intents
from infrarsi.contract import lock as locks
from infrarsi.contract.envelopes import DEFAULT_CAPS
from infrarsi.contract.scope import lock_digests
from infrarsi.ledger import Ledger, parse
from infrarsi.records import (
    Assignment,
    Budget,
    Calibration,
    Candidate,
    Contract,
    Examination,
    Hardware,
    Invariants,
    Knob,
    Level,
    Measurement,
    Noise,
    Outcome,
    Pair,
    Parameter,
    Patch,
    ReplayFigure,
    Scope,
    Setting,
    StepRecord,
    Trial,
    Verdict,
    Workload,
)
from infrarsi.stats.paired import Design, judge
from infrarsi.trial.collect import window_seconds
from infrarsi.vcs.commits import build_candidate, tree_with, write_commit
from infrarsi.vcs.door import Repository
from infrarsi.vcs.signing import sign_bytes

RUN = "20260101-000000-abcd"
BRANCH = applying.DEFAULT_BRANCH
LOOKS = (5, 9)
MODEL = "".join(f"x{number} = {number}\n" for number in range(30))
TRAIN = "import model\n\n\ndef get_batch():\n    return [1, 2]\n\n\nprint(get_batch())\n"
HARDWARE = Hardware("A CPU", ("avx2",), 2, 2**34, (), 0, "", "2.6.0", "", "3.11.2")
NOISE = Noise(0.02, 0.01, 0.1, 0.005, 2, 3, 0.02, 4)
KNOB = Knob("micro_batch", "flag", (Level("8"), Level("16", (Assignment("flag", "--batch_size", 16),))))
WINNER = Candidate((Setting("micro_batch", "16"),), ("fused",))


def intent(require_signature=False):
    return intents.Intent(
        goal="make it faster", numerics="reorder", data_level="exact", require_signature=require_signature,
        entry="train.py", command=("python3", "train.py", "--batch_size=8"), environment=(), world_size=1, data=(),
        setup=(), held_out="", scope=Scope(("*.py",), ("prepare.py", "train.py::get_batch")), budget=Budget(),
        launch=intents.Launch("python3", "auto", ()), search=intents.SearchOptions(0, 0, 2, ("catalogue",)),
        knobs=(KNOB,),
    )  # fmt: skip


class Case:
    """One repository, and a plain git in it, as a user would type it."""

    def __init__(self, root):
        self.root = Path(root)

    @property
    def repo(self):
        return Repository.discover(self.root)

    def git(self, *args, check=True, stdin=None, cwd=None, env=None):
        argv = ["git", *args]
        done = subprocess.run(
            argv, cwd=cwd or self.root, input=stdin, capture_output=True, text=True, env={**os.environ, **(env or {})}
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}{done.stdout}"
        return done.stdout.strip() if check else done

    def commit(self, text="change", **files):
        """Commit files given as `name__py="content"`; return the commit."""
        for name, content in files.items():
            (self.root / name.replace("__", ".")).write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "--no-gpg-sign", "--allow-empty", "-m", text)
        return self.git("rev-parse", "HEAD")

    def apply(self, **options):
        return applying.apply(self.root, **options)

    def verify(self, revision="HEAD"):
        return verifying.verify(self.root, revision)

    @property
    def promoted(self):
        return self.git("rev-parse", f"refs/heads/{BRANCH}")

    def everything(self):
        """HEAD, index and every byte of the work tree (R-E1)."""
        inside = [p for p in sorted(self.root.rglob("*")) if ".git" not in p.relative_to(self.root).parts]
        files = {str(p): p.read_bytes() for p in inside if p.is_file()}
        git = self.root / ".git"
        return files, (git / "index").read_bytes(), (git / "HEAD").read_text(), self.git("rev-parse", "HEAD")

    # --- making it

    def create(self, *, require_signature=False):
        """The code, then the contract, each one commit."""
        self.root.mkdir(parents=True)
        self.git("init", "-q")
        files = {"model__py": MODEL, "train__py": TRAIN, "prepare__py": "a = 1\n", "README__md": "A trainer.\n"}
        code = self.commit("code", **files)
        wanted = intent(require_signature)
        reader = CommitReader(self.repo, code)
        locked = lock_digests(wanted.scope, self.repo.tracked_files(code), reader)
        parameters = (Parameter("w", (2, 2), "float32"),)
        contract = Contract(
            goal=wanted.goal, base_commit=code,
            workload=Workload("train.py", wanted.command, (), 1, 8, 512, "exact", ()), scope=wanted.scope,
            locked=locked, invariants=Invariants(parameters, (), 1, 0, "reorder", DEFAULT_CAPS), budget=wanted.budget,
            intent_digest=intents.digest_of(wanted), require_signature=require_signature,
        )  # fmt: skip
        self.commit("contract", infrarsi__toml=intents.render(wanted), infrarsi__lock=locks.render(contract))
        return self

    def run(self, *, seconds=0.5, ended=True, seal=True, state_map=()):
        """A run whose candidate takes `seconds` a step against the baseline's 1 s; written by the real ledger."""
        workspace = load(self.root)
        repo, base = workspace.repo, workspace.head
        fast = MODEL.replace("x10 = 10\n", "x10 = 10  # fused\n").encode()
        diff = repo.diff(base, build_candidate(repo, base, (), {"model.py": fast}, "the patch"))
        patch = Patch("fused", "Fused optimizer", diff, "file", numerics="reorder", state_map=state_map)
        commit = build_candidate(repo, base, [diff], {}, "candidate")
        ledger = Ledger(repo.state_dir / "runs" / RUN / "ledger.jsonl")
        for kind, body in facts(workspace, patch, commit, seconds):
            ledger.append(kind, body)
        for number, tip in enumerate((base, commit)):
            self.git("branch", "-f", f"infrarsi/{RUN}/{number}", tip)
        if ended:
            ledger.append("run-ended", {"reason": "done", "wall_seconds": 60.0, "device_seconds": 60.0})
        if seal:
            seal_run(workspace, RUN, ledger, calibration(workspace))
        return self

    # --- and forging it, by someone who holds the key

    def payload(self):
        return parse_payload(decode_trailer(self.repo.trailers(self.promoted, TRAILER)[0]).payload)

    def ledger_lines(self):
        return parse(self.repo.read_blob(self.payload().evidence, "ledger.jsonl"))[0]

    def evidence(self, data, calibration=None):
        """An evidence commit that holds these bytes as its ledger, and the calibration that was sealed (or another)."""
        sealed = calibration or self.repo.read_blob(self.payload().evidence, "calibration.json")
        files = {"ledger.jsonl": data, "calibration.json": sealed}
        return write_commit(self.repo, tree_with(self.repo, None, files), [], "evidence")

    def rechained(self, change):
        """Evidence whose chain is intact and whose bodies went through `change(kind, body)` (in place)."""
        forged = Ledger(self.root / ".git" / "forged.jsonl")
        for line in self.ledger_lines():
            change(line.kind, line.body)
            forged.append(line.kind, line.body)
        return self.evidence(forged.path.read_bytes())

    def resign(self, edits=None, **changes):
        """A commit like the promoted one with `edits` in its tree and `changes` in its payload, well signed."""
        repo, payload = self.repo, self.payload()
        tree = tree_with(repo, payload.result_tree, edits or {})
        payload = replace(payload, result_tree=tree, patch_id=repo.patch_id(payload.base_tree, tree))
        data = canonical(replace(payload, **changes))
        audit = Audit(data, sign_bytes(repo, data, namespace=NAMESPACE))
        text = message("Faster", "Really.", [("Infrarsi-Run", RUN), (TRAILER, encode_trailer(audit))])
        return write_commit(repo, tree, [payload.base_commit], text, sign=True, as_tool=False)


def steps(seconds):
    """Five steps of one rank, three of them timed: a slow start, then equal steps."""
    return tuple(
        StepRecord(
            rank=0, step=n, arrival_seconds=100.0 + seconds * n, rank_seconds=seconds * n, loss=1.0, backward_calls=1,
            rows=8, tokens=512, row_hash="a", token_hash="b", grad_norm=1.0, clip_calls=0, update_sketch=(0.5,),
            hyper_digest="c", in_window=n > 2,
        )
        for n in range(1, 6)
    )  # fmt: skip


def trial(name, candidate, commit, seconds, block):
    window, count = window_seconds(steps(seconds))
    measured = Measurement(window, count, (seconds,) * count, 512 * count, 512 / seconds, 2**30, 2**30, 0.0)
    return Trial(
        id=name, run=RUN, number=int(candidate == WINNER), candidate=candidate, commit=commit, role="verify",
        argv=("python3", "train.py"), environment=(), engine="local", block=block, outcome=Outcome("ok"),
        measurement=measured, violations=(), wall_seconds=6.0, device_seconds=6.0, pressure=0.0, steps=steps(seconds),
    )  # fmt: skip


def facts(workspace, patch, commit, seconds):
    """Yield the (kind, body) of every ledger line but the last."""
    repo, base = workspace.repo, workspace.head
    yield "run-started", {
        "run": RUN, "goal": "make it faster", "contract_digest": workspace.digest, "base_commit": base,
        "original_commit": workspace.contract.base_commit, "calibration_digest": digest(calibration(workspace)),
        "hardware": HARDWARE, "knobs": [KNOB], "patches": [patch], "launch": [], "budget": Budget(),
        "floor": NOISE.floor, "baseline_step_seconds": 1.0, "baseline_peak_bytes": 2**30, "seed": 0,
        "version": "0.1.0",
    }  # fmt: skip
    for number, (candidate, built) in enumerate(((Candidate(), base), (WINNER, commit))):
        yield "candidate", {
            "number": number, "candidate": candidate, "commit": built, "tree": repo.tree_of(built), "why": "try",
            "predicted_step_seconds": None, "predicted_peak_bytes": None,
        }  # fmt: skip
    yield "search-ended", {"reason": "all tried"}
    chosen = [{"number": 1, "candidate": WINNER, "commit": commit}]
    yield "finalists", {"candidates": chosen, "pairs_per_look": list(LOOKS), "error_rate": 0.05}
    pairs = []
    for block in range(LOOKS[0]):
        slow, fast = 1.0 + 0.004 * block, seconds * (1.0 + 0.003 * (block % 3))
        made = (
            trial(f"a{block}", Candidate(), base, slow, block),
            trial(f"b{block}", WINNER, commit, fast, block),
        )
        for item in made:
            yield "trial-started", {"id": item.id, "number": item.number, "role": "verify", "block": block}
            yield "trial", item
        pairs.append(Pair(*(t.measurement.mean_step_seconds for t in made), *(t.id for t in made)))
        yield "pair", {"stage": "finalist", "number": 1, "pair": pairs[-1], "look": 0}
    design = Design(LOOKS, 0.05, 2)
    judged = judge(pairs, floor=NOISE.floor, design=design, look=0)
    verdict = Verdict(
        judged.decision or "inconclusive", WINNER, commit, judged.speedup, judged.low, judged.high, NOISE.floor, 0.05,
        tuple(pairs), 1, 2, judged.reason, memory_ratio=1.0,
    )  # fmt: skip
    yield "verdict", {"stage": "finalist", "number": 1, "verdict": encode(verdict)}
    held = tuple(ReplayFigure(check, 7, "blocks.*.weight", 1e-7, 1e-5) for check in ("mathematics", "gradients"))
    yield "examination", {"stage": "finalist", "subject": "1", "examination": Examination("1", held, (), 20.0, 40.0)}
    yield "verdict", {"stage": "final", "number": 1, "verdict": encode(verdict)}


def calibration(workspace):
    return Calibration(
        workspace.digest, workspace.head, HARDWARE, NOISE, (), (), 1.0, 512.0, 2**30, 2**30, (), (), None, (), None
    )


def copy_of(templates, name, target):
    shutil.copytree(templates / name, target, symlinks=True)
    return Case(target)


def says(result, decision, check, text):
    """Assert the decision and that `check` is what made it so, with these words; return that message."""
    shown = [(c.name, c.status, c.message) for c in result.checks]
    assert result.decision == decision, shown
    found = [c.message for c in result.checks if c.name == check and c.status == decision]
    assert any(text in m for m in found), shown
    return found[0]


def amend(case, *args, **files):
    case.git("switch", "-q", "--detach", BRANCH)
    for name, content in files.items():
        (case.root / name.replace("__", ".")).write_text(content)
    case.git("add", "-A")
    return case.git("commit", "-q", "--amend", *args) or case.git("rev-parse", "HEAD")
