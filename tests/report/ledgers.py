"""Ledgers of runs that never happened, written by the real Ledger from records made by hand."""

from dataclasses import replace

from infrarsi.ledger import Ledger
from infrarsi.records import (
    Assignment,
    Budget,
    Calibration,
    Candidate,
    Change,
    Claim,
    Contract,
    Digest,
    Effect,
    Envelope,
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
    Price,
    Scope,
    Setting,
    Trial,
    Trust,
    Verdict,
    Violation,
    Workload,
)

GIB = 2**30
HARDWARE = Hardware("A CPU", ("avx2",), 2, 16 * GIB, (), 0, "", "2.6.0", "", "3.11.2")
NOISE = Noise(0.02, 0.01, 0.1, 0.005, 3, 10, 0.02, 4)
KNOB = Knob(
    "micro_batch",
    "flag",
    (
        Level("8 x 4"),
        Level("16 x 2", (Assignment("flag", "--batch_size", 16), Assignment("flag", "--accum", 2))),
        Level("32 x 1", (Assignment("flag", "--batch_size", 32), Assignment("flag", "--accum", 1))),
    ),
    ordinal=True,
)
CONFIG = Knob(
    "workers", "config", (Level("0"), Level("2", (Assignment("config", "config/base.json:data.workers", 2),)))
)
DIFF = """diff --git a/model.py b/model.py
index 111..222 100644
--- a/model.py
+++ b/model.py
@@ -1,3 +1,3 @@
 a = 1
-b = 2
+b = 3
 c = 4
"""
SDPA = Patch("sdpa", "Fused attention", DIFF, "catalogue", (Claim("catalogue", 0.8),), "reorder")
WINNER = Candidate((Setting("micro_batch", "16 x 2"),), ("sdpa",))
TOO_BIG = Candidate((Setting("micro_batch", "32 x 1"),))
CHANGES = (Change("model.py", "100644", "100644", "1" * 40, "2" * 40, "M"),)
CONTRACT = Contract(
    "make it faster",
    "b" * 40,
    Workload("train.py", ("python3", "train.py"), (), 2, 32, 4096, "exact", (Digest("data.bin", "0" * 64, 9),)),
    Scope(("*.py",), ("data/**", "prepare.py")),
    (),
    Invariants((Parameter("w", (2, 2), "float32"),), (), 1, 1, "reorder", ()),
    Budget(),
    "0" * 64,
)
CALIBRATION = Calibration(
    "c" * 64, "b" * 40, HARDWARE, NOISE, (Envelope("reorder", 1e-5, 1e-4, 1e-3, ("two threads",)),), (), 0.75, 5461.0,
    2 * GIB, 3 * GIB, (("forward", 0.2), ("backward", 0.45), ("optimizer", 0.1)), (("train.py:10 loss.item()", 0.05),),
    3.0e10, (("float32", 1.1e11),), 0.364, ("communication takes 20% of a step", "next: git infrarsi run"),
)  # fmt: skip


def clock():
    """Return a clock that ticks one second per call."""
    ticks = iter(range(10**6))
    return lambda: f"2026-01-01T00:{(tick := next(ticks)) // 60:02d}:{tick % 60:02d}.000Z"


def ledger(path):
    return Ledger(path / "ledger.jsonl", clock())


def started(book, **changes):
    body = {
        "run": "20260101-000000-abcd",
        "goal": "make it faster",
        "contract_digest": "c" * 64,
        "base_commit": "b" * 40,
        "original_commit": "b" * 40,
        "calibration_digest": "d" * 64,
        "hardware": HARDWARE,
        "knobs": [KNOB, CONFIG],
        "patches": [SDPA],
        "launch": [],
        "budget": Budget(trials=10, memory_bytes=4 * GIB),
        "floor": 0.02,
        "baseline_step_seconds": 0.75,
        "baseline_peak_bytes": 2 * GIB,
        "seed": 0,
        "version": "0.1.0",
    }
    book.append("run-started", {**body, **changes})


def measurement(step, peak=2 * GIB):
    return Measurement(10 * step, 10, (step,) * 10, 40960, 4096 / step, peak, peak + GIB, 0.001)


def trial(number, candidate, step=None, kind="ok", message="", role="search", violations=(), peak=2 * GIB, **more):
    made = Trial(
        id=f"t{number}", run="20260101-000000-abcd", number=number, candidate=candidate, commit="e" * 40, role=role,
        argv=("python3", "train.py"), environment=(), engine="local", block=0, outcome=Outcome(kind, message),
        measurement=measurement(step, peak) if step else None, violations=violations, wall_seconds=20.0,
        device_seconds=40.0, pressure=0.0, why="seeded by the catalogue",
    )  # fmt: skip
    return replace(made, **more)


def shot(book, *args, **more):
    made = trial(*args, **more)
    book.append("trial-started", {"id": made.id, "number": made.number, "role": made.role, "block": 0})
    book.append("trial", made)
    return made


def verdict(decision, candidate=WINNER, speedup=1.5, low=1.46, high=1.54, pairs=5, reason="", **more):
    taken = tuple(Pair(0.75, 0.75 / speedup if speedup else 0.0, f"a{n}", f"b{n}") for n in range(pairs))
    made = Verdict(decision, candidate, "f" * 40, speedup, low, high, 0.02, 0.05, taken, 1, 2, reason, memory_ratio=1.2)
    return replace(made, **more)


def say(book, stage, number, said):
    book.append("verdict", {"stage": stage, "number": number, "verdict": said})


def ablation(book, part, kept, gain, reason):
    body = {"number": 1, "removed": part, "kept": kept, "reason": reason}
    book.append("ablation", {**body, "speedup": gain[0], "low": gain[1], "high": gain[2]})


def searched(book):
    """A search with a good one, an out-of-memory, a rejected one and a refused patch."""
    started(book)
    book.append(
        "patch-refused", {"patch": "gpt", "title": "Skip steps", "source": "file", "reason": "it touches data/x"}
    )
    shot(book, 0, Candidate(), 0.75)
    shot(book, 1, WINNER, 0.5, peak=int(2.4 * GIB))
    no_memory = Outcome("oom", "DefaultCPUAllocator: can't allocate memory", rank=1)
    shot(book, 2, TOO_BIG, outcome=no_memory, predicted_peak_bytes=5.0 * GIB)
    broken = Violation("invariant", "rows", "16 rows per step instead of 32", "16", "32")
    shot(book, 3, Candidate((), ("sdpa",)), 0.4, kind="rejected", violations=(broken,))
    book.append("search-ended", {"reason": "the budget of 4 trials is used"})


def accepted(path):
    book = ledger(path)
    searched(book)
    book.append("finalists", {"candidates": [], "pairs_per_look": [3, 5], "error_rate": 0.05})
    for number in range(3):
        pair = Pair(0.75, 0.5, f"a{number}", f"b{number}", voided="busy" if number == 1 else "")
        book.append("pair", {"stage": "finalist", "number": 1, "pair": pair, "look": 0})
        shot(book, 1, WINNER, 0.5, role="verify", id=f"b{number}")
    say(book, "finalist", 1, verdict("accepted"))
    ablation(book, "workers", False, (1.0, 0.98, 1.02), "no gain that can be told from noise")
    say(book, "final", 1, verdict("accepted"))
    effect = Effect("micro_batch", "16 x 2", -0.1, 0.2, -0.3, 0.02, "catalogue", 1.0, 0.0, -0.29, 0.03)
    untried = Effect("compile", "on", 0.0, 0.1, 0.0, 0.1, "", 0.0)
    prices = [Price("checkpointing", "on", 12.0, 0.5, 24.0), Price("compile", "on", -3.0, -0.1, None)]
    learnt = {"effects": [effect, untried], "prices": prices, "trust": [Trust("catalogue", 0.5, 1.0)]}
    book.append("effects", learnt)
    book.append("run-ended", {"reason": "done", "wall_seconds": 200.0, "device_seconds": 400.0})
    return list(book.replay())


def rejected(path):
    book = ledger(path)
    searched(book)
    said = verdict("rejected", speedup=1.005, low=0.99, high=1.02, reason="it does not clear the floor")
    say(book, "finalist", 1, said)
    say(book, "final", 1, said)
    book.append("run-ended", {"reason": "done", "wall_seconds": 200.0, "device_seconds": 160.0})
    return list(book.replay())


def undecided(path):
    book = ledger(path)
    searched(book)
    said = verdict("inconclusive", speedup=1.3, low=0.9, high=1.9, reason="the machine was too busy to tell")
    say(book, "final", 1, said)
    book.append("run-ended", {"reason": "done", "wall_seconds": 200.0, "device_seconds": 160.0})
    return list(book.replay())


def interrupted(path):
    book = ledger(path)
    started(book)
    shot(book, 0, Candidate(), 0.75)
    book.append("trial-started", {"id": "t1", "number": 1, "role": "search", "block": 0})
    book.append("run-resumed", {"reason": "killed", "interrupted": ["t1"]})
    return list(book.replay())


EVIL = (
    "<script>alert(1)</script> | [x](http://evil.example) @everyone `a` ``` \x1b[31mred\x1b[0m \u202eexe "
    "<img src=http://evil.example/x onerror=y>"
)


def malicious(path):
    book = ledger(path)
    patch = replace(SDPA, id="sd<b>pa", title=EVIL, diff=DIFF.replace("b = 3", EVIL), source=EVIL, why=EVIL)
    started(book, goal=EVIL, patches=[patch], version=EVIL)
    book.append("patch-refused", {"patch": EVIL, "title": EVIL, "source": EVIL, "reason": EVIL})
    candidate = Candidate((), ("sd<b>pa",))
    shot(book, 1, candidate, kind="crash", message=EVIL)
    broken = Violation("scope", EVIL, EVIL, EVIL, EVIL)
    shot(book, 2, candidate, 0.5, kind="rejected", violations=(broken,))
    book.append("search-ended", {"reason": EVIL})
    ablation(book, EVIL, True, (1.0, 0.0, 1e9), EVIL)
    say(book, "final", 1, verdict("rejected", candidate, 0.0, 0.0, 0.0, 0, reason=EVIL))
    book.append("run-ended", {"reason": EVIL, "wall_seconds": 1.0, "device_seconds": 1.0})
    return list(book.replay())
