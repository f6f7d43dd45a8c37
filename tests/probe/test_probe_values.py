"""The pure parts of a step: sketch, hyper-parameters, phases, norms, FLOPs, canonical names."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from infrarsi.probe import hyper, model
from infrarsi.probe.flops import FlopCounter
from infrarsi.probe.following import Following
from infrarsi.probe.phases import NAMES, Phases
from infrarsi.probe.sketch import BUCKETS
from infrarsi.probe.values import StepValues, gradient_square
from infrarsi.probe.wire import FLOAT_MAX, finite


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 1))


def update_of(net, move, gradient=None):
    """The sketch of what `move(name, parameter)` does to a net whose gradients are `gradient(name, parameter)`."""
    pairs = model.named(net)
    for name, p in pairs:
        p.grad = gradient(name, p) if gradient else torch.ones_like(p)
    following = Following(pairs)
    following.read_gradients()
    with torch.no_grad():
        for name, p in pairs:
            move(name, p)
    closed = following.close()
    assert closed is not None
    return following.settle(closed).sketch


def test_sketch_is_linear_in_the_update_and_the_same_for_equal_runs():
    def move(scale):
        return lambda name, p: p.add_(scale * len(name))

    one, again, double = (update_of(small_model(), move(scale)) for scale in (1.0, 1.0, 2.0))
    assert one.shape == (BUCKETS,) and one.norm() > 0
    assert torch.equal(one, again)
    assert torch.allclose(double, 2 * one, atol=1e-5)


def test_sketch_without_gradients_is_unweighted():
    net = small_model()
    following = Following(model.named(net))
    with torch.no_grad():
        net[1].weight.add_(1.0)
    closed = following.close()
    assert closed is not None and following.settle(closed).sketch.norm() > 1


def test_sketch_leaves_out_coordinates_whose_gradient_is_noise():
    """R-A6: Adam turns rounding noise (key biases) into full steps; an honest reorder must not show there."""
    sketch = update_of(
        small_model(),
        lambda name, p: p.add_(1.0 if name == "1.bias" else 0.0),
        lambda name, p: torch.full_like(p, 1e-9 if name == "1.bias" else 1.0),
    )
    assert sketch.norm() < 1e-6


def test_sketch_sees_a_single_parameter_that_is_not_stepped():
    full = update_of(small_model(), lambda name, p: p.sub_(0.01))
    partial = update_of(small_model(), lambda name, p: p.sub_(0.0 if name == "2.weight" else 0.01))
    assert (full - partial).norm() / full.norm() > 0.05


def test_hyper_digest_changes_with_the_learning_rate_and_not_with_how_a_step_is_computed():
    p = nn.Parameter(torch.zeros(3))
    digests = [
        hyper.digest_of(hyper.groups_of(torch.optim.AdamW([p], **options)))
        for options in ({"lr": 1e-3}, {"lr": 1e-3, "foreach": True}, {"lr": 1e-3, "fused": True}, {"lr": 2e-3})
    ]
    assert len(set(digests[:3])) == 1
    assert digests[3] != digests[0]


def test_hyper_values_are_plain():
    p = nn.Parameter(torch.zeros(3))
    (group,) = hyper.message_of(hyper.groups_of(torch.optim.AdamW([p], lr=torch.tensor(0.25), betas=(0.9, 0.95))))
    values = dict(map(tuple, group["values"]))
    assert values["lr"] == 0.25 and values["betas"] == "(0.9, 0.95)" and values["elements"] == 3
    assert "fused" not in values and "params" not in values


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.module = inner


class DistributedDataParallel(Wrapped):
    pass


def test_parameters_have_canonical_names_inside_wrappers():
    net = nn.Sequential(nn.Linear(2, 2))
    expected = ["0.bias", "0.weight"]
    assert [name for name, _ in model.named(net)] == expected
    assert [name for name, _ in model.named(DistributedDataParallel(net))] == expected
    assert [name for name, _ in model.named(Wrapped(net))] == ["module.0.bias", "module.0.weight"]


def test_parameter_hash_sees_one_bit():
    first, second = small_model(), small_model()
    assert model.parameter_hash(model.named(first)) == model.parameter_hash(model.named(second))
    with torch.no_grad():
        second[1].bias[3] += 1e-7
    assert model.parameter_hash(model.named(first)) != model.parameter_hash(model.named(second))
    half = small_model().bfloat16()
    assert len(model.parameter_hash(model.named(half))) == 32


def test_gradient_norm_is_exact_when_small_and_scaled_up_when_large(monkeypatch):
    net = small_model()
    for p in net.parameters():
        p.grad = torch.full_like(p, 2.0)
    exact = sum(float((p.grad**2).sum()) for p in net.parameters())
    assert float(gradient_square(list(net.parameters()))) == pytest.approx(exact)
    monkeypatch.setattr("infrarsi.probe.values.MAX_NORM_ELEMENTS", 40)
    assert float(gradient_square(list(net.parameters()))) == pytest.approx(exact, rel=1e-5)
    assert gradient_square([nn.Parameter(torch.zeros(2))]) is None


def test_norms_of_several_clips_combine():
    values = StepValues()
    values.add_norm(torch.tensor(3.0))
    values.add_norm(4.0)
    assert math.sqrt(float(values.norm_square)) == pytest.approx(5.0)


def test_numbers_that_json_lacks_become_the_largest_float():
    assert finite(1.5) == 1.5
    assert [finite(v) for v in (math.nan, math.inf, -math.inf)] == [FLOAT_MAX] * 3


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_phases_are_exclusive_and_sum_to_the_step():
    clock = Clock()
    phases = Phases(clock, lambda: None)

    def spend(seconds):
        clock.now += seconds

    spend(1)  # gap
    phases.enter("forward")
    spend(2)
    phases.enter("communication")
    spend(4)
    phases.leave()
    phases.leave(base="forward")
    spend(8)  # the loss, outside of the model
    phases.enter("backward")
    spend(16)
    phases.leave(base="gap")
    phases.enter("optimizer")
    spend(32)
    phases.leave(base="gap")
    seconds = phases.take(gap_is_data=True)
    assert tuple(seconds) == NAMES
    assert seconds == {
        "data": 1, "forward": 10, "backward": 16, "optimizer": 32, "communication": 4, "other": 0,
    }  # fmt: skip
    assert sum(seconds.values()) == clock.now
    spend(3)
    assert phases.take(gap_is_data=False)["other"] == 3


def test_moved_seconds_never_exceed_what_is_there():
    clock = Clock()
    phases = Phases(clock, lambda: None)
    phases.enter("backward")
    clock.now = 2.0
    phases.charge()
    phases.move(5.0, "backward", "communication")
    assert phases.take(gap_is_data=True)["communication"] == 2.0


def test_flops_of_a_linear_layer_and_of_attention_on_cpu():
    """R-B5: scaled dot-product attention on CPU is counted, forward (2 products) and backward (5)."""
    layer, x = nn.Linear(16, 32, bias=False), torch.randn(8, 16)
    with FlopCounter() as counter:
        layer(x).sum().backward()
    assert counter.total == 2 * (2 * 8 * 16 * 32)
    q, k, v = (torch.randn(2, 4, 64, 16, requires_grad=True) for _ in range(3))
    with FlopCounter() as counter:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    product = 2 * (2 * 4) * 64 * 64 * 16
    assert counter.total == 7 * product
