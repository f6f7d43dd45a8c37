"""Honest changes of a real training, judged as a run judges them: calibrated by doctor's own steps, then checked.

`python honest_case.py [SEED ...]` makes every change at every seed and prints how far each moved what is allowed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from infrarsi.commands import honest
from infrarsi.commands.bench import Shot, Window
from infrarsi.commands.doctor import make_bench
from infrarsi.commands.init import InitOptions, init
from infrarsi.commands.workspace import load
from infrarsi.contract.envelopes import Deviation, deviation, trace
from infrarsi.contract.invariants import check
from infrarsi.contract.numbers import envelope_of
from infrarsi.records import Assignment, Calibration, Hardware, Noise
from infrarsi.trial.local import LocalEngine

HERE = Path(__file__).resolve().parent
TRAINER = HERE.parent / "fakes" / "gpt.py"
INJECT = HERE.parents[1] / "infrarsi" / "probe" / "inject"
WINDOW = Window(warmup_steps=2, timed_steps=18)
HARDWARE = Hardware("A CPU", (), 2, 2**33, (), 0, "", "2", "", "3")
TOML = """
[contract]
goal = "make it faster"
numerics = "reduced"
[workload]
entry = "train.py"
command = {command}
world_size = {ranks}
[workload.environment]
OMP_NUM_THREADS = 1
[scope]
editable = ["*.py"]
[launch]
python = "{python}"
sandbox = "off"
[[knobs]]
name = "micro_batch"
kind = "flag"
baseline = "4"
[[knobs.levels]]
label = "{label}"
set = {set}
"""


@dataclass(frozen=True)
class Honest:
    """One honest change: flags and environment, perturbations that stand for code, its numerics class."""

    name: str
    flags: tuple[tuple[str, object], ...] = ()
    numerics: str = "reorder"
    threads: int = 1

    @property
    def assignments(self):
        flags = tuple(Assignment("flag", f"--{name}", value) for name, value in self.flags)
        return (*flags, Assignment("env", "OMP_NUM_THREADS", str(self.threads))) if self.threads != 1 else flags


def change(name, numerics="reorder", threads=1, **flags):
    return Honest(name, tuple(flags.items()), numerics, threads)


def changes(ranks):
    """Return the honest changes at a number of ranks, those of the shortest list first."""
    each = 16 // ranks
    found = [
        Honest("repeat", numerics="bitwise"),
        change("one micro-batch", batch_size=each, accum=1),
        change("SDPA", attention="sdpa"),
        change("fused AdamW", adamw="fused"),
        change("checkpointing", checkpoint="on"),
        change("two threads", threads=2),
        change(
            "everything", attention="sdpa", adamw="fused", loss="chunks", projection="one", batch_size=each, accum=1
        ),
        change("bf16", "reduced", autocast="bf16"),
        change("bf16, SDPA, fused", "reduced", autocast="bf16", attention="sdpa", adamw="fused"),
        change("bf16, one micro-batch", "reduced", autocast="bf16", batch_size=each, accum=1),
        change("micro-batches of two", batch_size=2, accum=each // 2),
        change("one row at a time", batch_size=1, accum=each),
        change("one projection", projection="one"),
        change("loss in chunks", loss="chunks"),
        change("AdamW by foreach", adamw="foreach"),
        change("AdamW in a loop", adamw="loop"),
        change("clipping in a loop", clip="loop"),
        change("SDPA, checkpointing, two threads", attention="sdpa", checkpoint="on", threads=2),
        change("bf16, chunks, one projection", "reduced", autocast="bf16", loss="chunks", projection="one"),
        change("bf16, checkpointing, two threads", "reduced", threads=2, autocast="bf16", checkpoint="on"),
    ]
    if ranks > 1:
        found += [change("small buckets", buckets=0.01), change("gradients of every micro-step", sync="every")]
    return found


class Training:
    """A repository with the trainer under a contract, calibrated; `judge` makes one honest change of it."""

    def __init__(self, root: Path, seed: int, ranks: int = 1) -> None:
        self.root, self.engine = root, LocalEngine(INJECT)
        root.mkdir(parents=True)
        shutil.copy(TRAINER, root / "train.py")
        launcher = ["torchrun", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else ["python3"]
        command = [*launcher, "train.py", f"--seed={seed}", "--batch_size=4", f"--accum={4 // ranks}"]
        level = f'{{ "--batch_size" = 2, "--accum" = {8 // ranks} }}'
        text = TOML.format(
            command=json.dumps(command), ranks=ranks, python=sys.executable, label=f"2 x {8 // ranks}", set=level
        )
        (root / "infrarsi.toml").write_text(text)
        self._git("init", "-q")
        self._commit()
        init(root, InitOptions(), self.engine, lambda event: None)
        self._commit()
        self.workspace = load(root)
        self.contract = self.workspace.contract
        self.bench = make_bench(self.workspace, self.engine, "honest", self.workspace.repo.state_dir / "honest")

    def _git(self, *args: str) -> None:
        names = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *names, *args], cwd=self.root, check=True, capture_output=True)

    def _commit(self) -> None:
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "step")

    def execute(self, tree, assignments=(), perturb=(), on_progress=None):
        shot = Shot(tree, self.workspace.head, assignments, WINDOW, "calibration", perturb=perturb)
        return self.bench.execute(self.bench.plan(shot), on_progress)

    def calibrate(self, tree) -> Calibration:
        """Take doctor's steps that concern envelopes: two repeats, and its honest changes."""
        ranks = self.contract.workload.world_size
        runs = [self.execute(tree) for _ in range(2)]

        def shoot(one, on_progress):
            return self.execute(tree, one.settings, one.perturb, on_progress)

        found, notes = honest.envelopes(
            self.contract, self.workspace.intent.knobs, HARDWARE, runs, shoot, lambda event: None
        )
        assert not notes, notes
        noise = Noise(0, 0, 0, 0, WINDOW.warmup_steps, WINDOW.timed_steps, 0.01, 2)
        reference = trace(runs[0].steps, ranks)
        return Calibration("", "", HARDWARE, noise, found, reference, 1.0, 1.0, 0, 0, (), (), None, (), None)

    def judge(self, tree, calibration, one):
        """Return the violations of one honest change, and (moved, allowed) as deviations."""
        run = self.execute(tree, one.assignments)
        assert run.outcome.kind == "ok", (one.name, run.outcome, run.log_tail[-500:])
        found = check(self.contract, calibration, run.steps, run.ends, numerics=one.numerics)
        envelope = envelope_of(self.contract, calibration, one.numerics)
        moved = deviation(calibration.trace, trace(run.steps, self.contract.workload.world_size), by_step=True)
        return found, moved, Deviation(envelope.loss, envelope.grad_norm, envelope.update)


def report(seeds, ranks_of) -> int:
    """Make every change at every seed; return how many were refused."""
    refused = total = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            training = Training(Path(folder) / "project", seed, ranks_of(seed))
            with training.bench.checkout(training.workspace.head) as tree:
                calibration = training.calibrate(tree)
                print(f"seed {seed}, {ranks_of(seed)} ranks", flush=True)
                for envelope in calibration.envelopes:
                    print(f"  {envelope.numerics}: {envelope.loss:.1e} {envelope.grad_norm:.1e} {envelope.update:.1e}")
                    print(
                        *(f"    {m.name}: {m.loss:.1e} {m.grad_norm:.1e} {m.update:.1e}" for m in envelope.moved),
                        sep="\n",
                    )
                for one in changes(ranks_of(seed)):
                    found, moved, allowed = training.judge(tree, calibration, one)
                    total, refused = total + 1, refused + bool(found)
                    numbers = "  ".join(f"{a:.1e} of {b:.1e}" for a, b in zip(moved, allowed, strict=True))
                    words = f"REFUSED: {found[0].message}" if found else "passes"
                    print(f"  {one.numerics:8} {one.name:34} {numbers}  {words}", flush=True)
    print(f"{refused} of {total} refused")
    return refused


if __name__ == "__main__":
    sys.exit(bool(report([int(a) for a in sys.argv[1:]] or [1, 2, 3], lambda seed: 2 if seed == 3 else 1)))
