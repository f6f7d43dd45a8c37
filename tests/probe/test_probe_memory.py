"""What the peak of a rank consists of."""

import torch
from torch import nn

from infrarsi.probe import memory, model

MIB = 2**20


def net_and_held(optimizer=None):
    """A net of 4 MiB in float32, with its gradients and the state of one optimizer step."""
    net = nn.Linear(1024, 1024, bias=False)
    held = memory.Held()
    if optimizer is not None:
        net(torch.ones(1, 1024)).sum().backward()
        made = optimizer(net.parameters())
        made.step()
        held.note(made)
        net.kept = made
    return net, held


def test_the_peak_is_parameters_gradients_state_what_is_held_and_the_rest() -> None:
    net, held = net_and_held(torch.optim.Adam)
    now = memory._now()
    terms = held.terms(model.named(net), now + 100 * MIB)
    assert terms["parameters"] == terms["gradients"] == 4 * MIB
    assert 8 * MIB <= terms["optimizer"] < 8 * MIB + 100
    assert abs(terms["activations"] - 100 * MIB) < 8 * MIB
    assert abs(sum(terms.values()) - (now + 100 * MIB)) < 8 * MIB


def test_gradients_that_are_gone_between_steps_were_there_at_the_peak() -> None:
    net, held = net_and_held(torch.optim.SGD)
    with_them = held.terms(model.named(net), 10**9)
    net.zero_grad(set_to_none=True)
    without = held.terms(model.named(net), 10**9)
    assert with_them["gradients"] == without["gradients"] == 4 * MIB
    assert without["optimizer"] == 0


def test_what_is_not_trained_has_no_gradient_and_what_is_tied_counts_once() -> None:
    net, held = net_and_held()
    twice = nn.ModuleDict({"a": net, "b": net})
    net.weight.requires_grad_(False)
    terms = held.terms([*model.named(net), *model.named(twice)], 10**9)
    assert (terms["parameters"], terms["gradients"]) == (4 * MIB, 0)
    assert held.terms(model.named(net), 0)["activations"] == 0
