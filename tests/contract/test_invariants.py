"""Ring 2: every known way to train less than the contract says, each refused by its own words; honest runs pass."""

import dataclasses
import math

import pytest

from infrarsi.contract.envelopes import DEFAULT_CAPS, calibrate, default_caps, trace
from infrarsi.contract.invariants import beyond_shadow, check
from infrarsi.records import (
    NUMERICS_ORDER,
    Budget,
    Calibration,
    Contract,
    Hardware,
    HyperParameters,
    Invariants,
    Noise,
    Parameter,
    RankEnd,
    Scope,
    StepRecord,
    Workload,
)

STEPS = 8
PARAMETERS = (Parameter("w", (4, 4), "float32"), Parameter("b", (4,), "float32"))


def hyper(lr=1e-3, step=1):
    return HyperParameters(step, "AdamW", 0, (("betas", "(0.9, 0.95)"), ("lr", lr), ("weight_decay", 0.1)))


HYPER = (hyper(), hyper(2e-3, 3))


def steps_of(ranks=2, calls=4, *, steps=STEPS, seed=0, noise=0.0):
    """What an honest trainer reports: 16 rows of 8 tokens a step over the ranks, whatever the partition."""
    found = []
    for step in range(1, steps + 1):
        base = (3.0 - 0.1 * step) * (1 + noise * (-1) ** step)
        for rank in range(ranks):
            rows = range(rank * 16 // ranks, (rank + 1) * 16 // ranks)
            row_hash = f"{sum(((seed * 9973 + step) * 1009 + r) * 0x9E3779B97F4A7C15 for r in rows) % 2**64:016x}"
            found.append(
                StepRecord(
                    rank=rank,
                    step=step,
                    arrival_seconds=step * 1.0,
                    rank_seconds=step * 1.0,
                    loss=base,
                    backward_calls=calls,
                    rows=len(rows),
                    tokens=len(rows) * 8,
                    row_hash=row_hash,
                    token_hash=row_hash,
                    grad_norm=0.5 * (1 + noise),
                    clip_calls=1,
                    update_sketch=(0.1, -0.2 * (1 + noise)),
                    hyper_digest="warm" if step < 3 else "full",
                    unique_rows=len(rows),
                )
            )
    return found


def ends_of(ranks=2, steps=STEPS):
    return [
        RankEnd(
            rank=r,
            peak_allocated_bytes=1,
            peak_reserved_bytes=1,
            parameters=PARAMETERS,
            parameter_hash="same",
            hyper_parameters=HYPER,
            modules_outside=(),
            hooks_intact=True,
            optimizer_steps=steps,
        )
        for r in range(ranks)
    ]


def contract_of(level="exact", numerics="reorder", **changes):
    invariants = Invariants(
        parameters=PARAMETERS,
        hyper_parameters=HYPER,
        optimizer_steps=1,
        clips_per_step=1,
        numerics=numerics,
        caps=default_caps(level),
    )
    return Contract(
        goal="x",
        base_commit="a" * 40,
        workload=Workload("train.py", ("python", "train.py"), (), 2, 16, 128, level, ()),
        scope=Scope(("*.py",)),
        locked=(),
        invariants=dataclasses.replace(invariants, **changes),
        budget=Budget(),
        intent_digest="",
    )


def calibration_of(contract):
    level = contract.workload.data_level
    reference = trace(steps_of(), 2)
    perturbed = {"noise": trace(steps_of(noise=1e-6), 2)}
    if level != "exact":
        perturbed = {f"seed {n}": trace(steps_of(seed=n, noise=1e-3), 2) for n in (1, 2)}
    envelopes = tuple(
        calibrate(c.numerics, [reference, reference], perturbed, c, data_level=level) for c in contract.invariants.caps
    )
    return Calibration(
        contract_digest="",
        commit="",
        hardware=Hardware("cpu", (), 2, 1, (), 0, "", "2", "", "3"),
        noise=Noise(0, 0, 0, 0, 2, 6, 0.01, 4),
        envelopes=envelopes,
        trace=reference,
        step_seconds=1.0,
        tokens_per_second=1.0,
        peak_allocated_bytes=1,
        peak_reserved_bytes=1,
        phases=(),
        hot_lines=(),
        flops_per_step=None,
        peak_flops=(),
        mfu=None,
    )


CONTRACT = contract_of()
CALIBRATION = calibration_of(CONTRACT)


def verdict(steps=None, ends=None, contract=CONTRACT, calibration=CALIBRATION, numerics="reorder"):
    steps = steps if steps is not None else steps_of()
    ends = ends if ends is not None else ends_of()
    found = check(contract, calibration, steps, ends, numerics=numerics)
    assert all(v.ring == "invariant" and v.message and v.observed and v.allowed for v in found), found
    return {v.check: v.message for v in found}


def edit(steps, **changes):
    """Change every record; a value may be a function of the record."""
    return [dataclasses.replace(s, **{k: v(s) if callable(v) else v for k, v in changes.items()}) for s in steps]


@pytest.mark.parametrize("numerics", NUMERICS_ORDER)
def test_the_baseline_keeps_its_own_contract(numerics):
    """R-A6."""
    assert verdict(numerics=numerics) == {}
    assert verdict(calibration=None, numerics=numerics) == {}


def test_honest_shadows_pass_and_the_message_names_step_and_optimizer():
    """R-A5: which optimizer, at which step, by how much; excused where the contract says that it cannot be told."""
    assert verdict(edit(steps_of(), shadow_error=4e-4)) == {}
    frozen = edit(steps_of(), shadow_error=lambda r: 0.8 if r.step == 5 and r.rank else 1e-7)
    found = verdict(frozen)
    assert set(found) == {"shadow"} and "step 5" in found["shadow"] and "AdamW" in found["shadow"]
    assert verdict(frozen, contract=contract_of(unobserved=("shadow",))) == {}
    assert [s.step for s in beyond_shadow(frozen)] == [5]


@pytest.mark.parametrize(("ranks", "calls"), [(1, 1), (1, 8), (2, 1), (2, 8), (4, 2)])
def test_honest_partitions_and_rounding_pass(ranks, calls):
    """R-A6: another micro-batch, other ranks, rounding."""
    assert verdict(steps_of(ranks, calls, noise=2e-6), ends_of(ranks)) == {}


def test_a_longer_and_a_shorter_window_pass():
    assert verdict(steps_of(steps=40), ends_of(steps=40)) == {}
    assert verdict(steps_of(steps=3), ends_of(steps=3)) == {}


CHEATS = {
    "smaller batch": (lambda s: edit(s, rows=4, tokens=32), "rows"),
    "shorter sequences": (lambda s: edit(s, tokens=lambda r: r.tokens // 2), "tokens"),
    "dropped tokens": (lambda s: edit(s, token_hash="beef"), "same-tokens"),
    "repeated batch": (lambda s: edit(s, row_hash=s[0].row_hash), "same-rows"),
    "other rows": (lambda s: edit(s, row_hash=lambda r: f"{int(r.row_hash, 16) ^ 1:x}"), "same-rows"),
    "constant loss": (lambda s: edit(s, loss=2.0), "loss"),
    "scaled loss": (lambda s: edit(s, loss=lambda r: r.loss / 2), "loss"),
    "detached loss": (lambda s: edit(s, loss=None, backward_calls=0), "loss"),
    "zero gradients": (lambda s: edit(s, grad_norm=0.0), "grad_norm"),
    "hidden gradient norm": (lambda s: edit(s, grad_norm=None), "grad_norm"),
    "no clipping": (lambda s: edit(s, clip_calls=0), "clipping"),
    "silent drift of the gradient": (lambda s: edit(s, grad_norm=lambda r: r.grad_norm * 1.02), "grad_norm"),
    "half of the update": (lambda s: edit(s, update_sketch=lambda r: (r.update_sketch[0], 0.0)), "update"),
    "no update": (lambda s: edit(s, update_sketch=(0.0, 0.0)), "update"),
    "another schedule": (lambda s: edit(s, hyper_digest="other"), "hyper-parameters"),
    "not a number": (lambda s: edit(s, loss=math.nan), "finite-loss"),
    "infinite norm": (lambda s: edit(s, grad_norm=math.inf), "finite-grad_norm"),
    "a rank that trains on the other's rows": (lambda s: edit(s, row_hash=s[0].row_hash), "repeated-rows"),
    "a step left out": (lambda s: [r for r in s if r.step != 4], "report"),
    "an optimizer that does otherwise": (lambda s: edit(s, shadow_error=lambda r: 0.8 * (r.step == 5)), "shadow"),
    "a shadow that is no number": (lambda s: edit(s, shadow_error=math.nan), "shadow"),
    "nothing at all": (lambda s: [], "optimizer-steps"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_in_the_steps_are_refused(cheat):
    """R-A3, R-A5."""
    change, expected = CHEATS[cheat]
    found = verdict(change(steps_of()))
    assert expected in found, found


ENDS = {
    "fewer layers": ({"parameters": PARAMETERS[:1]}, "parameters"),
    "an extra parameter": ({"parameters": (*PARAMETERS, Parameter("x", (1,), "float32"))}, "parameters"),
    "a smaller one": ({"parameters": (Parameter("w", (2, 4), "float32"), PARAMETERS[1])}, "parameters"),
    "bf16 master weights": ({"parameters": (Parameter("w", (4, 4), "bfloat16"), PARAMETERS[1])}, "parameters"),
    "a frozen one": ({"parameters": (PARAMETERS[0], Parameter("b", (4,), "float32", False))}, "parameters"),
    "another learning rate": ({"hyper_parameters": (hyper(1e-3), hyper(1e-3, 3))}, "hyper-parameters"),
    "another optimizer": ({"hyper_parameters": (HyperParameters(1, "SGD", 0, (("lr", 1e-3),)),)}, "hyper-parameters"),
    "optimizer every second step": ({"optimizer_steps": STEPS // 4}, "optimizer-steps"),
    "code from elsewhere": ({"modules_outside": ("/home/user/model.py",)}, "modules"),
    "hooks removed": ({"hooks_intact": False}, "hooks"),
    "something hidden": ({"unobserved": ("update",)}, "unobserved"),
}


@pytest.mark.parametrize("cheat", ENDS)
def test_cheats_at_the_end_are_refused(cheat):
    """R-A3, R-A10."""
    change, expected = ENDS[cheat]
    found = verdict(ends=[dataclasses.replace(e, **change) for e in ends_of()])
    assert expected in found, found


def test_ranks_that_drift_apart_are_refused():
    first, second = ends_of()
    found = verdict(ends=[first, dataclasses.replace(second, parameter_hash="other")])
    assert set(found) == {"rank-agreement"}
    silent = verdict(ends=[first])
    assert "rank 1 gave no final report" in silent["report"]


def test_what_the_baseline_does_not_show_cannot_fail():
    contract = contract_of(unobserved=("grad_norm", "parameter_hash agreement (sharded)"))
    calibration = calibration_of(contract)
    blind = dataclasses.replace(
        calibration, trace=tuple(dataclasses.replace(t, grad_norm=None) for t in calibration.trace)
    )
    first, second = (dataclasses.replace(e, unobserved=("grad_norm",)) for e in ends_of())
    ends = [first, dataclasses.replace(second, parameter_hash="shard")]
    assert verdict(edit(steps_of(), grad_norm=None), ends, contract, blind) == {}


def test_the_class_of_the_change_chooses_the_envelope():
    """R-A4."""
    rough = edit(steps_of(), loss=lambda r: r.loss * 1.0005)
    assert set(verdict(rough, numerics="reorder")) == {"loss"}
    assert "at optimizer step" in verdict(rough, numerics="reorder")["loss"]
    assert verdict(rough, numerics="reduced", contract=contract_of(numerics="reduced")) == {}
    assert set(verdict(edit(steps_of(), loss=lambda r: r.loss * (1 + 1e-9)), numerics="bitwise")) == {"loss"}


def test_a_loose_calibration_is_cut_at_the_contracts_cap():
    """R-A4: also one that was edited after doctor."""
    loose = tuple(dataclasses.replace(e, loss=9.0, grad_norm=9.0, update=9.0) for e in CALIBRATION.envelopes)
    calibration = dataclasses.replace(CALIBRATION, envelopes=loose)
    assert "loss" in verdict(edit(steps_of(), loss=lambda r: r.loss * 1.01), calibration=calibration)


def test_a_class_without_an_envelope_is_refused():
    found = verdict(calibration=dataclasses.replace(CALIBRATION, envelopes=()))
    assert set(found) == {"envelope"}


class TestSameSet:
    contract = contract_of("same-set")
    calibration = calibration_of(contract)

    def verdict(self, steps):
        return verdict(steps, contract=self.contract, calibration=self.calibration)

    def test_the_same_rows_in_another_order_pass(self):
        swapped = steps_of()
        hashes = {(s.step, s.rank): s.row_hash for s in swapped}
        other = {1: 2, 2: 1}
        assert self.verdict(edit(swapped, row_hash=lambda r: hashes[(other.get(r.step, r.step), r.rank)])) == {}

    def test_a_missing_row_is_refused(self):
        found = self.verdict(edit(steps_of(), row_hash=lambda r: r.row_hash if r.step > 1 else "1234"))
        assert "same-rows" in found


class TestSampled:
    contract = contract_of("sampled")
    calibration = calibration_of(contract)

    def verdict(self, steps, **more):
        return verdict(steps, contract=self.contract, calibration=self.calibration, **more)

    def test_other_rows_pass(self):
        """R-A6: also in a window that was stopped early."""
        assert self.verdict(steps_of(seed=5, noise=2e-3)) == {}
        assert self.verdict(steps_of(seed=5, noise=2e-3, steps=3), ends=ends_of(steps=3)) == {}

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"rows": 4}, "rows"),
            ({"tokens": 32}, "tokens"),
            ({"row_hash": "1"}, "repeated-rows"),
            ({"row_hash": lambda r: f"{r.step:x}"}, "repeated-rows"),
            ({"unique_rows": 1}, "repeated-rows"),
            ({"loss": lambda r: r.loss * 1.1}, "loss"),
            ({"grad_norm": 0.0}, "grad_norm"),
            ({"update_sketch": (0.0, 0.0)}, "update"),
        ],
    )
    def test_what_is_not_scatter_is_refused(self, changes, expected):
        """R-A3: repeated rows over steps, over ranks, within a batch."""
        assert expected in self.verdict(edit(steps_of(seed=5), **changes))


def test_caps_come_with_the_data_level():
    assert default_caps("exact") == DEFAULT_CAPS


def test_a_state_map_that_does_not_fit_is_named_whatever_else_is_unobserved():
    contract = contract_of(unobserved=("parameters",))
    ends = ends_of()
    ends[1] = dataclasses.replace(ends[1], state_map_refused="qkv is sharded")
    (found,) = check(contract, calibration_of(contract), steps_of(), ends, numerics="reorder")
    assert (found.check, found.message) == ("state-map", "qkv is sharded")
