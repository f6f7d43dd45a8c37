"""Codemods of the training loop: executed before and after, on small trainers written in the usual ways."""

import textwrap

import pytest
import torch

from infrarsi.propose.codemods import no_sync, remove_item_sync, set_to_none
from infrarsi.propose.codemods.base import Codemod


class FakeDDP(torch.nn.Module):
    """Counts synchronised and unsynchronised backward passes the way DDP decides them: in its forward."""

    def __init__(self, module, **_):
        super().__init__()
        self.module, self.sync, self.log = module, True, []

    def no_sync(self):
        model = self

        class Context:
            def __enter__(self):
                model.sync = False

            def __exit__(self, *_):
                model.sync = True

        return Context()

    def forward(self, x):
        self.log.append(self.sync)
        return self.module(x)


HEADER = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def prepare(model):
    return DDP(model)


"""


def dedent(source: str) -> str:
    return textwrap.dedent(source).strip("\n") + "\n"


def run(source: str, **arguments):
    """Execute `train(model, …)` of a source with a seeded model; returns its result, the weights and the sync log."""
    namespace: dict = {}
    exec(compile(source, "train.py", "exec"), namespace)
    torch.manual_seed(0)
    model = FakeDDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = list(torch.randn(12, 3, 4, generator=torch.Generator().manual_seed(1)))
    shown = namespace["train"](model, optimizer, data, **arguments)
    return shown, [p.detach().clone() for p in model.parameters()], model.log


def changed(codemod: Codemod, source: str) -> str:
    after = codemod.transform(source, "train.py")
    assert after is not None
    assert codemod.transform(after, "train.py") is None
    return after


COUNTED = HEADER + dedent(
    """
    def train(model, optimizer, data, accum=4):
        shown = []
        for step in range(3):
            optimizer.zero_grad()
            total = 0.0
            for micro in range(accum):  # gradient accumulation
                x = data[step * accum + micro]

                # forward
                loss = model(x).square().mean()
                loss = loss / accum
                loss.backward()  # backward
                total += loss.item()
            optimizer.step()
            if step % 2 == 0:
                shown.append(f"{total:.6f}")
        return shown
    """
)
MODULO = HEADER + dedent(
    """
    def train(model, optimizer, data, accum=4):
        running = 0.0
        shown = []
        for i, x in enumerate(data):
            loss = model(x).square().mean() / accum
            loss.backward()
            running += loss.item() * len(x)
            if (i + 1) % accum == 0 or i + 1 == len(data):
                optimizer.step()
                optimizer.zero_grad()
            if i % 5 == 0:
                shown.append(running)
                running = 0.0
        return shown
    """
)


@pytest.mark.parametrize("source", [COUNTED, MODULO], ids=["counted", "modulo"])
def test_no_sync_synchronises_only_the_last_micro_step(source: str) -> None:
    before, after = run(source), run(changed(no_sync.CODEMOD, source))
    assert before[0] == after[0] and all(map(torch.equal, before[1], after[1]))
    assert after[2] == [False, False, False, True] * 3


def test_no_sync_keeps_comments_and_wraps_forward_and_backward() -> None:
    after = changed(no_sync.CODEMOD, COUNTED)
    assert "# gradient accumulation" in after and "# forward" in after and "# backward" in after
    assert after.startswith("import contextlib\nimport torch\n")
    body = after[after.index("with (") : after.index("total += ")]
    assert "model(x)" in body and "loss.backward()" in body
    plain = changed(
        no_sync.CODEMOD, COUNTED.replace("import torch\n", "import torch\nfrom contextlib import nullcontext\n", 1)
    )
    assert "else nullcontext())" in plain and "import contextlib" not in plain


def test_no_sync_names_an_unnamed_loop_variable() -> None:
    source = COUNTED.replace("for micro in", "for _ in").replace("data[step * accum + micro]", "data[step]")
    after = changed(no_sync.CODEMOD, source)
    assert "for micro_step in range(accum)" in after and run(after)[2] == [False, False, False, True] * 3


def test_no_sync_reads_a_flag_that_was_computed_before() -> None:
    source = MODULO.replace("        loss = model", "        last = (i + 1) % accum == 0\n        loss = model", 1)
    source = source.replace("if (i + 1) % accum == 0 or i + 1 == len(data):", "if last:")
    assert run(changed(no_sync.CODEMOD, source))[2] == [False, False, False, True] * 3


def test_no_sync_handles_an_attribute_model_and_a_scaler() -> None:
    source = dedent(
        """
        import torch
        from torch import nn

        class Trainer:
            def __init__(self, model, args):
                self.model = nn.parallel.DistributedDataParallel(model)
                self.args = args

            def step(self, scaler, batches):
                for k in range(self.args.grad_accum):
                    with torch.autocast("cuda"):
                        loss = self.model(next(batches))
                    scaler.scale(loss / self.args.grad_accum).backward()
                scaler.step(self.optimizer)
                scaler.update()
        """
    )
    after = changed(no_sync.CODEMOD, source)
    assert "with (self.model.no_sync() if k < self.args.grad_accum - 1 and hasattr(self.model" in after


NO_SYNC_REFUSED = {
    "nanoGPT's own switch": (
        "loss = model(x)",
        "model.require_backward_grad_sync = micro == accum - 1\n            loss = model(x)",
    ),
    "already": ("loss = model(x)", "no_sync = None\n            loss = model(x)"),
    "static graph": ("DDP(model)", "DDP(model, static_graph=True)"),
    "stops early": ("loss.backward()", "loss.backward()\n            if total > 9:\n                break"),
    "skips": ("loss = loss / accum", "if loss > 1e3:\n                continue"),
    "clips in the loop": (
        "loss.backward()",
        "loss.backward()\n            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    "length changes": ("loss = loss / accum", "accum = accum"),
    "two models": ("loss = model(x)", "other_model(x)\n            loss = model(x)"),
    "no accumulation": ("for micro in range(accum):", "for micro in range(1):"),
    "unknown length": ("for micro in range(accum):", "for micro, _ in enumerate(data):"),
    "accelerate": ("loss.backward()", "accelerator.backward(loss)"),
}


@pytest.mark.parametrize("name", NO_SYNC_REFUSED)
def test_no_sync_refuses(name: str) -> None:
    old, new = NO_SYNC_REFUSED[name]
    assert old in COUNTED
    source = COUNTED.replace(old, new)
    if name == "two models":
        source = source.replace("return DDP(model)", "return model")
    assert no_sync.CODEMOD.transform(source, "train.py") is None


def test_no_sync_refuses_a_step_without_accumulation() -> None:
    source = COUNTED.replace(
        "            total += loss.item()\n        optimizer.step()", "            optimizer.step()"
    )
    assert source != COUNTED and no_sync.CODEMOD.transform(source, "train.py") is None


@pytest.mark.parametrize("source", [COUNTED, MODULO], ids=["counted", "modulo"])
def test_the_shown_loss_stays_the_same_to_the_last_digit(source: str) -> None:
    after = changed(remove_item_sync.CODEMOD, source)
    assert ".item()" not in after
    old, new = run(source), run(after)
    assert old[0] == new[0] and all(map(torch.equal, old[1], new[1]))


def test_the_last_loss_is_fetched_when_it_is_printed() -> None:
    source = HEADER + dedent(
        """
        def train(model, optimizer, data, accum=4):
            shown, last = [], 0.0
            for step in range(3):
                for micro in range(accum):
                    loss = model(data[step * accum + micro]).square().mean()
                    last = loss.detach().cpu().item() * accum
                    loss.backward()
                    loss *= 0
                optimizer.step()
                shown.append(last)
                last /= 2
            return [*shown, last]
        """
    )
    after = changed(remove_item_sync.CODEMOD, source)
    assert ".item()" not in after and run(source)[0] == run(after)[0]


ITEM_REFUSED = {
    "shown at every micro-step": ("total += loss.item()", "total += loss.item()\n            print(total)"),
    "not the loss": ("total += loss.item()", "total += x.sum().item()"),
    "starts as a tensor": ("total = 0.0", "total = torch.zeros(())"),
    "method of the total": ("total:.6f", "total.real:.6f"),
    "self-documenting f-string": ("{total:.6f}", "{total=}"),
    "global": ("shown = []", "global total\n    shown = []"),
    "steers the loop": ("total += loss.item()", "total += loss.item()\n            x = x if total < 5 else -x"),
    "scaled by a call": ("total += loss.item()", "total += loss.item() * weight(x)"),
}


@pytest.mark.parametrize("name", ITEM_REFUSED)
def test_item_refuses(name: str) -> None:
    old, new = ITEM_REFUSED[name]
    assert old in COUNTED
    assert remove_item_sync.CODEMOD.transform(COUNTED.replace(old, new), "train.py") is None


def test_a_variable_of_the_same_name_elsewhere_is_left_alone() -> None:
    source = (
        COUNTED
        + "\n\ndef evaluate(model):\n    total = 0.0\n"
        + "    for x in range(3):\n        total += model(x).item()\n    return total\n"
    )
    after = changed(remove_item_sync.CODEMOD, source)
    assert after.endswith("        total += model(x).item()\n    return total\n")


def test_gradients_are_dropped_instead_of_zeroed() -> None:
    source = COUNTED.replace("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)  # start afresh")
    after = changed(set_to_none.CODEMOD, source)
    assert "optimizer.zero_grad(set_to_none=True)  # start afresh" in after
    assert all(map(torch.equal, run(source)[1], run(after)[1]))
    manual = COUNTED.replace(
        "optimizer.zero_grad()",
        "for p in model.parameters():\n            if p.grad is not None:\n                p.grad.zero_()",
    )
    after = changed(set_to_none.CODEMOD, manual)
    assert "p.grad = None" in after and all(map(torch.equal, run(manual)[1], run(after)[1]))


@pytest.mark.parametrize(
    "source",
    [
        "optimizer.zero_grad()\n",
        "optimizer.zero_grad(set_to_none=True)\n",
        "optimizer.zero_grad(set_to_none=flag)\n",
        "def norm(ps):\n    return sum(p.grad.norm() for p in ps)\noptimizer.zero_grad(set_to_none=False)\n",
    ],
)
def test_set_to_none_refuses(source: str) -> None:
    assert set_to_none.CODEMOD.transform(source, "train.py") is None
