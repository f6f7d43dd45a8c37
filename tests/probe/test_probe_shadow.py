"""The sampled coordinates, and the float64 shadow of torch's optimizers on them, without a process."""

import gc
import random
import weakref

import pytest
import torch
from torch import nn

from infrarsi.probe.coordinates import COORDINATES, Coordinates, _inside, spots
from infrarsi.probe.following import Following
from infrarsi.probe.shadow import rule_of
from infrarsi.probe.sharding import norm_square, shards
from infrarsi.probe.values import StepValues, gradient_square


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def pairs_of(module):
    return sorted(module.named_parameters())


def error_of(following):
    closed = following.close()
    assert closed is not None
    update = following.settle(closed)
    return None if update.shadow_error is None else float(update.shadow_error) ** 0.5


def errors(module, optimizers, steps=5, skipped=(), change=lambda step: None):
    """The shadow's error at each step; `skipped` names parameters without a gradient at odd steps."""
    following, found = Following(pairs_of(module)), []
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for name, p in pairs_of(module):
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            if name in skipped and step % 2:
                p.grad = None
        change(step)
        for optimizer in optimizers:
            following.on_step(optimizer)
            optimizer.step()
        found.append(error_of(following))
    return found


ADAM, ADAMW, SGD = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
HONEST = [
    (ADAMW, {}),
    (ADAMW, {"lr": 0.3, "betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.5}),
    (ADAMW, {"amsgrad": True, "maximize": True}),
    (ADAMW, {"fused": True}),
    (ADAM, {"weight_decay": 0.2, "foreach": True}),
    (ADAM, {"weight_decay": 0.2, "decoupled_weight_decay": True}),
    (ADAM, {"lr": torch.tensor(0.01), "foreach": False}),
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "fused": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "maximize": True}),
]


@pytest.mark.parametrize(("kind", "options"), HONEST)
def test_the_rules_are_torchs(kind, options):
    """R-A6: with parameters that sometimes have no gradient."""
    module = net()
    found = errors(module, [kind(module.parameters(), **options)], skipped=("1.weight",))
    assert max(found) < 1e-5


def test_groups_schedules_and_added_parameters():
    module = net()
    first, *others = module.parameters()
    optimizer = ADAMW([{"params": [first], "lr": 0.1}, {"params": others[:2], "weight_decay": 0.4}], lr=0.01)

    def change(step):
        optimizer.param_groups[0]["lr"] *= 0.7
        optimizer.param_groups[1]["betas"] = (0.9 - 0.1 * step, 0.99)
        if step == 2:
            optimizer.add_param_group({"params": others[2:], "lr": 0.05})

    assert max(errors(module, [optimizer], steps=6, change=change)) < 1e-5


def test_a_tiny_step_is_not_mistaken_for_rounding_nor_rounding_for_a_step():
    """R-A6: a learning rate of a warm-up's first steps moves a weight near 1 by a few units in the last place."""
    module = net()
    assert max(errors(module, [ADAMW(module.parameters(), lr=3e-7)])) < 0.01
    module = net()
    assert max(errors(module, [ADAMW(module.parameters(), lr=0.0)])) == 0.0


def test_weights_that_change_without_a_step_and_steps_that_do_not_change_them():
    module = net()
    following, optimizer = Following(pairs_of(module)), SGD(module.parameters(), lr=0.1)
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    following.on_step(optimizer)
    assert error_of(following) == pytest.approx(1.0, rel=1e-4)
    following.on_step(optimizer)
    optimizer.step()
    with torch.no_grad():
        module[2].weight.add_(0.1)
    assert error_of(following) > 0.3


def test_which_optimizers_have_a_rule():
    p = [nn.Parameter(torch.zeros(3))]

    class Other(torch.optim.Optimizer):
        pass

    class AdamW(torch.optim.Optimizer):
        pass

    assert rule_of(Other(p, {"lr": 0.1})) is None and rule_of(torch.optim.RMSprop(p)) is None
    assert rule_of(AdamW(p, {"lr": 0.1})) is None
    own = AdamW(p, {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1})
    assert rule_of(own) == rule_of(ADAMW(p)) == rule_of(type("Mine", (ADAMW,), {})(p)) != rule_of(ADAM(p))


def test_one_unknown_optimizer_leaves_the_step_uncompared():
    module = net()
    first, *others = module.parameters()
    following = Following(pairs_of(module))
    optimizers = [torch.optim.RMSprop([first]), SGD(others, lr=0.1)]
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    for optimizer in optimizers:
        following.on_step(optimizer)
        optimizer.step()
    assert error_of(following) is None and following.unobserved == {"shadow"}


# -- coordinates ----------------------------------------------------------------------------------------------------


def test_coordinates_are_the_same_values_whatever_the_layout():
    torch.manual_seed(0)
    weight = torch.randn(6, 4, 3, 5)
    plain, strided = nn.Parameter(weight.clone()), nn.Parameter(weight.clone(memory_format=torch.channels_last))
    flat = nn.Parameter(weight.clone().double())
    values = [Coordinates([("w", p)]).weights() for p in (plain, strided, flat)]
    assert values[0].numel() == COORDINATES
    assert torch.equal(values[0], values[1]) and torch.allclose(values[0], values[2])
    count, offset, stride = spots(weight.numel(), random.Random(0))
    assert offset + (count - 1) * stride < weight.numel()


def test_complex_and_scalar_parameters():
    p = nn.Parameter(torch.tensor([1 + 2j, 3 + 4j]))
    assert sorted(Coordinates([("c", p)]).weights().tolist()) == [1.0, 2.0, 3.0, 4.0]
    assert Coordinates([("s", nn.Parameter(torch.tensor(5.0)))]).weights().tolist() == [5.0]


def test_sparse_gradients_are_added_up_at_the_coordinates():
    table = nn.Embedding(7, 5, sparse=True)
    table(torch.tensor([3, 3, 0, 6])).pow(2).sum().backward()
    at = Coordinates([("w", table.weight)])
    sparse, there = at.gradients(at.parts)
    square = gradient_square([table.weight])
    table.weight.grad = table.weight.grad.to_dense()
    dense, _ = at.gradients(at.parts)
    assert there is None and torch.equal(sparse, dense)
    assert square == pytest.approx(float(gradient_square([table.weight])))


def test_a_replaced_storage_is_noticed_and_let_go():
    """Weights may be swapped (`p.data = …`), and gradients are freed between steps: neither may be kept alive."""
    p = nn.Parameter(torch.zeros(100))
    at = Coordinates([("w", p)])
    old = weakref.ref(p.untyped_storage())
    assert float(at.weights().sum()) == 0.0
    p.data = torch.ones(100)
    gc.collect()
    assert old() is not None  # kept until the next look, so that its address cannot be given away
    assert float(at.weights().sum()) == COORDINATES
    p.grad = torch.ones(100)
    gradient = weakref.ref(p.grad)
    at.gradients(at.parts)
    p.grad = None
    gc.collect()
    assert gradient() is None and old() is None


def test_each_coordinate_lies_on_exactly_one_shard():
    whole = [7, 6]
    chosen = list(range(0, 42, 5))
    boxes = [([3, 6], [0, 0]), ([4, 3], [3, 0]), ([4, 3], [3, 3])]
    found = [_inside(chosen, whole, shape, begins) for shape, begins in boxes]
    assert sorted(k for positions, _ in found for k in positions) == list(range(len(chosen)))
    weight = torch.arange(42).reshape(7, 6)
    for (shape, begins), (positions, flat) in zip(boxes, found, strict=True):
        box = weight[begins[0] : begins[0] + shape[0], begins[1] : begins[1] + shape[1]].reshape(-1)
        assert [int(box[k]) for k in flat] == [chosen[k] for k in positions]


class Placement:
    def __init__(self, kind, norm_type=None):
        self.norm_type = norm_type
        self.is_replicate, self.is_partial = (lambda: kind == "replicate"), (lambda: kind == "partial")
        self.__class__ = type("Shard" if kind == "shard" else "Other", (Placement,), {})


class Mesh:
    def size(self, number):
        return (2, 4)[number]


class Distributed(torch.Tensor):
    """What the probe looks at of a DTensor."""

    def __new__(cls, local, placements):
        tensor = torch.Tensor._make_subclass(cls, local)
        tensor._local_tensor, tensor.placements, tensor.device_mesh = local, placements, Mesh()
        return tensor


def test_shards_are_counted_and_what_cannot_be_placed_is_said():
    shard, replicate, partial = Placement("shard"), Placement("replicate"), Placement("partial")
    value, placements = torch.zeros(3), ((shard, replicate), (replicate, shard), (shard, shard))
    assert [shards(Distributed(value, p)) for p in placements] == [2, 4, 8]
    assert shards(Distributed(value, (shard, partial))) is None and shards(value) == 1


def test_norms_of_shards_have_the_whole_ones_mean_square():
    """Of ranks with norms 3 and 4 each reports a square; their mean is 25."""
    replicate, partial = Placement("replicate"), Placement("partial", norm_type=2)
    squares = [norm_square(Distributed(torch.tensor(v), (partial, replicate))) for v in (3.0, 4.0)]
    assert sum(squares) / 2 == 25.0
    assert norm_square(Distributed(torch.tensor(5.0), (replicate, replicate))) == norm_square(torch.tensor(5.0)) == 25.0
    values = StepValues()
    values.add_norm(Distributed(torch.tensor(3.0), (partial, replicate)))
    assert values.norm_square == 18.0
