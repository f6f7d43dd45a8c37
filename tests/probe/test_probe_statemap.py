"""Slices of a fused parameter under the old names: what the probe sees of them, and maps that do not fit the model."""

import gc
import weakref

import pytest
import torch
from torch import nn

from infrarsi.probe import memory, model, weights
from infrarsi.probe.following import Following
from infrarsi.probe.shadow import why_not
from infrarsi.probe.statemap import Slice, StateMap, StateMapError, whole_of


def entry(new, shapes, dim=0, dtype="float32"):
    return {"new": new, "dim": dim, "dtype": dtype, "pieces": [[name, list(s)] for name, s in shapes.items()]}


MAP = StateMap([entry("qkv.weight", {"q": (2, 4), "k": (4, 4)}), entry("qkv.bias", {"q_bias": (2,), "k_bias": (4,)})])


def fused():
    torch.manual_seed(0)
    module = nn.Module()
    module.qkv, module.head = nn.Linear(4, 6), nn.Linear(6, 3)
    return module


def pairs_of(module, state_map=MAP):
    return state_map.present(model.named(module))


def backward(module, seed=1):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    module.head(torch.tanh(module.qkv(x.to(module.qkv.weight.dtype)))).square().sum().backward()


# -- slices ---------------------------------------------------------------------------------------------------------


def test_slices_stand_under_the_old_names_with_the_old_shapes():
    module = fused()
    pairs = pairs_of(module)
    assert [name for name, _ in pairs] == ["head.bias", "head.weight", "k", "k_bias", "q", "q_bias"]
    described = {name: rest for name, *rest in model.describe(pairs)}
    assert described["k"] == [[4, 4], "float32", True] and described["q_bias"] == [[2], "float32", True]
    assert whole_of(dict(pairs)["q"]) is module.qkv.weight and whole_of(module.head.bias) is module.head.bias
    assert MAP and MAP.names(["qkv.weight", "other"]) == {"q", "k", "other"}


def test_views_follow_updates_in_place_replaced_weights_and_new_gradients():
    module = fused()
    q = dict(pairs_of(module))["k"]
    assert q.grad is None
    backward(module)
    assert torch.equal(q.grad, module.qkv.weight.grad[2:])
    with torch.no_grad():
        module.qkv.weight.mul_(2.0)
    assert torch.equal(model.local(q), module.qkv.weight[2:])
    module.qkv.weight.grad = torch.ones(6, 4)
    assert float(q.grad.sum()) == 16.0
    module.qkv.weight.data = torch.zeros(6, 4)
    assert float(q.full_tensor().abs().sum()) == 0.0


def test_type_and_what_is_trained_are_the_wholes_at_that_moment():
    """A patch may not turn the fused matrix to bf16, or freeze it, once nobody looks any more."""
    module = fused()
    pairs = [(name, p) for name, p in pairs_of(module) if isinstance(p, Slice)]
    module.qkv.to(torch.bfloat16).requires_grad_(False)
    assert {tuple(rest) for _, _, *rest in model.describe(pairs)} == {("bfloat16", False)}


def test_a_replaced_storage_is_let_go():
    module = fused()
    pairs = pairs_of(module)
    old = weakref.ref(module.qkv.weight.untyped_storage())
    module.qkv.weight.data = torch.ones(6, 4)
    gc.collect()
    assert old() is None and len(pairs) == 6


def test_a_slice_is_saved_alone_and_loaded_in_place(tmp_path):
    module, other = fused(), fused()
    backward(module)
    pairs = pairs_of(module)
    weights.save(tmp_path / "w.pt", weights.weights_of(module, pairs), write=True)
    weights.save(tmp_path / "g.pt", weights.gradients_of(pairs), write=True)
    _, saved = weights.read(tmp_path / "w.pt")
    _, gradients = weights.read(tmp_path / "g.pt")
    assert torch.equal(saved["k"], module.qkv.weight[2:]) and torch.equal(gradients["q"], module.qkv.weight.grad[:2])
    assert {type(t) for t in (*saved.values(), *gradients.values())} == {torch.Tensor}
    big = torch.zeros(1000, 1000)
    weights.save(tmp_path / "part.pt", {"x": Slice.of(big, 0, 3, 2)}, write=True)
    assert (tmp_path / "part.pt").stat().st_size < 20_000
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    weights.load(other, pairs_of(other), saved)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_the_hash_is_that_of_separate_parameters():
    module = fused()
    alone = sorted((name, nn.Parameter(model.local(p).detach().clone())) for name, p in pairs_of(module))
    assert model.parameter_hash(pairs_of(module)) == model.parameter_hash(alone)


def test_memory_counts_the_whole_once():
    module = fused()
    backward(module)
    mapped, plain = (memory.Held().terms(pairs, 2**40) for pairs in (pairs_of(module), model.named(module)))
    for term in ("parameters", "gradients"):
        assert mapped[term] == plain[term] == 4 * sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("dim", [0, 1])
def test_a_sparse_gradient_and_either_dimension(dim):
    table = nn.Embedding(6, 4, sparse=True)
    table(torch.tensor([1, 5, 5])).sum().backward()
    part = Slice.of(table.weight, dim, 1, 2)
    assert torch.equal(part.grad, table.weight.grad.to_dense().narrow(dim, 1, 2))


# -- what is computed of them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.3}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_sketch_and_shadow_are_those_of_separate_parameters(kind, options, dim):
    """R-A6: the optimizer steps one fused parameter; what is seen is what three separate ones would show."""
    generator = torch.Generator().manual_seed(3)
    parts = {name: torch.randn(4, 4, generator=generator) for name in ("a", "b", "c")}
    whole = nn.Parameter(torch.cat(list(parts.values()), dim=dim))
    separate = {name: nn.Parameter(value.clone()) for name, value in parts.items()}
    fused_map = StateMap([entry("abc", dict.fromkeys(parts, (4, 4)), dim=dim)])
    sides = (fused_map.present([("abc", whole)]), list(separate.items()))
    optimizers = (kind([whole], lr=0.1, **options), kind(separate.values(), lr=0.1, **options))
    followed = [Following(pairs) for pairs in sides]
    for _ in range(4):
        gradients = {name: torch.randn(4, 4, generator=generator) for name in parts}
        whole.grad = torch.cat(list(gradients.values()), dim=dim)
        for name, p in separate.items():
            p.grad = gradients[name]
        updates = []
        for following, optimizer in zip(followed, optimizers, strict=True):
            following.on_step(optimizer)
            optimizer.step()
            updates.append(following.settle(following.close()))
        assert torch.allclose(updates[0].sketch, updates[1].sketch, atol=1e-7)
        assert max(float(u.shadow_error) for u in updates) < 1e-8


def test_the_state_of_a_resumed_optimizer_is_taken_over_slice_by_slice():
    module = fused()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    backward(module)
    optimizer.step()
    following = Following(pairs_of(module))
    backward(module, seed=2)
    following.on_step(optimizer)
    optimizer.step()
    assert float(following.settle(following.close()).shadow_error) < 1e-8


def test_an_update_of_one_slice_only_is_seen():
    module = fused()
    following, optimizer = Following(pairs_of(module)), torch.optim.SGD(module.parameters(), lr=0.1)
    backward(module)
    following.on_step(optimizer)
    kept = module.qkv.weight.detach()[2:].clone()
    optimizer.step()
    with torch.no_grad():
        module.qkv.weight[2:] = kept
    assert float(following.settle(following.close()).shadow_error) > 0.01


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([entry("other", {"q": (2, 4)})], "names other, which the model does not have"),
        ([entry("qkv.weight", {"q": (2, 4)})], r"has shape \(6, 4\); the parts .* make \(2, 4\)"),
        ([entry("qkv.weight", {"q": (2, 4), "k": (5, 4)})], r"make \(7, 4\)"),
        ([entry("qkv.weight", {"q": (6, 2), "k": (6, 3)}, dim=1)], r"make \(6, 5\)"),
        ([entry("qkv.weight", {"q": (2, 4), "k": (4, 4)}, dtype="bfloat16")], "is float32; .* was bfloat16"),
        ([entry("qkv.weight", {"q": (2, 4), "head.bias": (4, 4)})], "makes head.bias, which the model has as well"),
    ],
)
def test_a_map_that_does_not_fit_the_model_is_refused(entries, why):
    with pytest.raises(StateMapError, match=why):
        pairs_of(fused(), StateMap(entries))


def test_double_precision_is_a_replays_and_no_map_changes_nothing():
    module = fused()
    assert [str(p.dtype) for name, p in pairs_of(module.double()) if name == "q"] == ["torch.float64"]
    assert not StateMap([]) and pairs_of(module, StateMap([])) == model.named(module)


def test_sharded_parameters_are_refused():
    module = fused()
    module.qkv.weight._local_shape = (3, 4)  # as FSDP1 marks its own
    with pytest.raises(StateMapError, match="is sharded"):
        pairs_of(module)


def test_only_elementwise_optimizers_may_step_a_fused_parameter():
    module = fused()
    pairs = pairs_of(module)

    class Muon(torch.optim.Optimizer):
        pass

    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        assert why_not(kind(module.parameters(), lr=0.1), pairs) == ""
    assert "Muon may look at whole matrices" in why_not(Muon(module.parameters(), {"lr": 0.1}), pairs)
    assert why_not(Muon(module.head.parameters(), {"lr": 0.1}), pairs) == ""
