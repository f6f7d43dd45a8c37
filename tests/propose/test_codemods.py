"""The smaller codemods: what they write, that it computes the same, and what they leave alone."""

import textwrap
import warnings

import pytest
import torch

from infrarsi.propose.codemods import (
    CODEMODS,
    autocast,
    checkpointing,
    ddp_bucket_view,
    eval_no_grad,
    fused_adamw,
    host_waits,
    moe_dispatch,
    moe_index,
    pin_memory,
    tf32,
)
from infrarsi.propose.codemods.base import Codemod


def dedent(source: str) -> str:
    return textwrap.dedent(source).strip("\n") + "\n"


def changed(codemod: Codemod, source: str) -> str:
    after = codemod.transform(source, "file.py")
    assert after is not None
    assert codemod.transform(after, "file.py") is None
    return after


@pytest.mark.parametrize("codemod", CODEMODS, ids=lambda codemod: codemod.id)
def test_every_codemod_leaves_alone_what_it_does_not_know(codemod: Codemod) -> None:
    for source in (
        "",
        "x = 1\n",
        "def broken(:\n",
        '"""Only a docstring."""\n',
        "import torch\nx = torch.ones(3) @ torch.ones(3)\n",
    ):
        assert codemod.transform(source, "file.py") is None
    assert codemod.transform("x = 1", "notes.md") is None


def test_ids_are_unique_and_every_catalogue_id_exists() -> None:
    from infrarsi.propose.catalogue import by_id

    assert len({codemod.id for codemod in CODEMODS}) == len(CODEMODS)
    assert all(codemod.catalogue_id in by_id() for codemod in CODEMODS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "import torch\no = torch.optim.AdamW(p, lr=1e-3)\n",
            "import torch\no = torch.optim.AdamW(p, lr=1e-3, fused=True)\n",
        ),
        ("from torch.optim import AdamW\no = AdamW(p)\n", "from torch.optim import AdamW\no = AdamW(p, fused=True)\n"),
        (
            "from torch import optim\no = optim.SGD(p, 0.1)\n",
            "from torch import optim\no = optim.SGD(p, 0.1, fused=True)\n",
        ),
        (
            "import torch\no = torch.optim.Adam(\n    p,  # all\n    lr=1e-3,  # rate\n)\n",
            "import torch\no = torch.optim.Adam(\n    p,  # all\n    lr=1e-3,  # rate\n    fused=True,\n)\n",
        ),
        (
            "import torch\no = torch.optim.Adam(\n    p,\n    lr=1e-3\n)\n",
            "import torch\no = torch.optim.Adam(\n    p,\n    lr=1e-3,\n    fused=True\n)\n",
        ),
        (
            "import torch\nready = True\nfused = ready and device == 'cuda'\no = torch.optim.SGD(p, fused=fused)\n",
            "import torch\nready = True\nfused = ready\no = torch.optim.SGD(p, fused=fused)\n",
        ),
        (
            "import torch\no = torch.optim.AdamW(p, fused=torch.cuda.is_available())\n",
            "import torch\no = torch.optim.AdamW(p, fused=True)\n",
        ),
    ],
)
def test_fused_optimizer_is_written_in_the_style_of_the_call(before: str, after: str) -> None:
    assert changed(fused_adamw.CODEMOD, before) == after


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AdamW\no = AdamW(p)\n",
        "import torch\no = torch.optim.AdamW(p, foreach=True)\n",
        "import torch\no = torch.optim.AdamW(p, fused=False)\n",
        "import torch\no = torch.optim.AdamW(p, **extra)\n",
        "import torch\no = torch.optim.RMSprop(p)\n",
        "from .optim import AdamW\no = AdamW(p)\n",
    ],
)
def test_fused_optimizer_refuses(source: str) -> None:
    assert fused_adamw.CODEMOD.transform(source, "file.py") is None


def test_fused_optimizer_steps_alike() -> None:
    source = dedent(
        """
        import torch

        def train():
            torch.manual_seed(0)
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
            return model.weight.detach()
        """
    )
    results = []
    for text in (source, changed(fused_adamw.CODEMOD, source)):
        namespace: dict = {}
        exec(text, namespace)
        results.append(namespace["train"]())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_bucket_view_for_every_spelling_of_ddp() -> None:
    for header, call in (
        ("from torch.nn.parallel import DistributedDataParallel as DDP", "DDP(model, device_ids=[rank])"),
        ("import torch", "torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])"),
        ("import torch.nn as nn", "nn.parallel.DistributedDataParallel(model, device_ids=[rank])"),
    ):
        after = changed(ddp_bucket_view.CODEMOD, f"{header}\nmodel = {call}\n")
        assert after.endswith("device_ids=[rank], gradient_as_bucket_view=True)\n")
    for source in (
        "from apex.parallel import DistributedDataParallel as DDP\nm = DDP(m)\n",
        "from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m, **options)\n",
        "from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m)\np.grad.detach_()\n",
    ):
        assert ddp_bucket_view.CODEMOD.transform(source, "file.py") is None


def moe(loop: str, forward: str = "return self.down(F.gelu(self.up(x)))", gates: str = "") -> str:
    source = f"""\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        {forward}


class MoE(nn.Module):
    def __init__(self, dim=8, n_experts=5, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(dim, n_experts)
        self.experts = nn.ModuleList([Expert(dim) for _ in range(n_experts)])

    def forward(self, x):
        probs = F.softmax(self.router(x), dim=-1)
        weights, chosen = torch.topk(probs, self.top_k, dim=-1)
"""
    if gates:
        source += f"        {gates}\n"
    return (
        source + "        out = torch.zeros_like(x)\n" + textwrap.indent(dedent(loop), " " * 8) + "        return out\n"
    )


MASKED = {
    "weights summed over slots": """
        for i, expert in enumerate(self.experts):
            weight = (weights * (chosen == i)).sum(-1, keepdim=True)
            out = out + weight * expert(x)
    """,
    "mask by name, in place": """
        for i, expert in enumerate(self.experts):
            mask = (chosen == i).float()
            share = (weights * mask).sum(dim=-1)
            out += expert(x) * share.unsqueeze(-1)
    """,
    "scattered gates": """
        for i, expert in enumerate(self.experts):
            out = out + gates[..., i : i + 1] * expert(x)
    """,
    "indexed experts": """
        for i in range(len(self.experts)):
            weight = (weights * (chosen == i)).sum(-1)[..., None]
            out = out + weight * self.experts[i](x)
    """,
    "any": """
        for i, expert in enumerate(self.experts):
            mask = (chosen == i).any(dim=-1)
            out = out + (probs[..., i] * mask).unsqueeze(-1) * expert(x)
    """,
}
GATES = "gates = torch.zeros_like(probs).scatter(-1, chosen, weights)"
SLOTS = """
    for index, expert in enumerate(self.experts):
        for slot in range(self.top_k):
            mask = chosen[:, slot] == index
            out[mask] += weights[mask, slot].unsqueeze(-1) * expert(x[mask])
"""


def compare_moe(before: str, after: str, shape: tuple[int, ...]) -> None:
    results = []
    for text in (before, after):
        namespace: dict = {}
        exec(text, namespace)
        torch.manual_seed(0)
        model = namespace["MoE"]()
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
        result = model(x)
        result.square().sum().backward()
        results.append([result, x.grad, *(p.grad for p in model.parameters())])
    for old, new in zip(*results, strict=True):
        torch.testing.assert_close(old, new, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(12, 8), (3, 4, 8), (1, 8)])
@pytest.mark.parametrize("name", MASKED)
def test_masked_experts_run_over_their_own_rows(name: str, shape: tuple[int, ...]) -> None:
    """Also with one row, where most experts have none and still must have gradients."""
    source = moe(MASKED[name], gates=GATES)
    after = changed(moe_dispatch.CODEMOD, source)
    assert "index_select" in after
    compare_moe(source, after, shape)


@pytest.mark.parametrize("shape", [(12, 8), (1, 8)])
def test_slot_loop_becomes_one_call_per_expert(shape: tuple[int, ...]) -> None:
    source = moe(SLOTS)
    after = changed(moe_index.CODEMOD, source)
    assert "for slot in" not in after
    compare_moe(source, after, shape)


@pytest.mark.parametrize(
    "source",
    [
        moe(MASKED["any"], forward="return self.down(self.up(x)).softmax(0)"),
        moe(MASKED["any"], forward="return self.down(self.up(x) - self.up(x).mean(0))"),
        moe(MASKED["any"].replace("self.experts)", "self.other)")),
        moe(MASKED["scattered gates"], gates="gates = probs"),
        moe(MASKED["any"].replace("* expert(x)", "* expert(x, i)")),
        moe(MASKED["any"].replace("expert(x)", "expert(x) + 1")),
        moe(SLOTS.replace("range(self.top_k)", "range(1)")),
        moe(SLOTS, forward="return self.down(self.up(x) / x.shape[0])"),
        moe(SLOTS.replace("expert(x[mask])", "expert(x[mask]) + 1")),
    ],
)
def test_moe_refuses_when_a_proof_is_missing(source: str) -> None:
    assert moe_dispatch.CODEMOD.transform(source, "file.py") is None
    assert moe_index.CODEMOD.transform(source, "file.py") is None


TRAIN = dedent(
    """
    import gc
    import torch

    def train(model, optimizer, loader, device):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            # forward
            out = model(x)
            loss = torch.nn.functional.mse_loss(out, y)
            loss.backward()
            optimizer.step()
            torch.cuda.empty_cache()

    def evaluate(model, loader):
        model.eval()
        total = 0.0
        for x, y in loader:
            total += torch.nn.functional.mse_loss(model(x), y).item()
        model.train()
        return total

    if __name__ == "__main__":
        torch.autograd.set_detect_anomaly(True)
        train(None, None, [], "cpu")
    """
)


def test_autocast_wraps_the_forward_and_not_the_backward() -> None:
    after = changed(autocast.CODEMOD, TRAIN)
    block = after[after.index("with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16)") :]
    inside, outside = block[: block.index("loss.backward")].split("\n"), block[block.index("loss.backward") :]
    assert sum(line.startswith("            ") for line in inside) >= 2 and outside.startswith("loss.backward()\n")
    assert "        # forward\n        with torch" in after
    for text in (TRAIN, after):
        namespace: dict = {}
        exec(text, namespace)
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        namespace["train"](
            model, torch.optim.SGD(model.parameters(), 0.1), [(torch.ones(3, 4), torch.ones(3, 2))], "cpu"
        )
        assert model.weight.dtype == torch.float32 and torch.isfinite(model.weight).all()
    assert autocast.CODEMOD.numerics == "reduced"
    assert (
        autocast.CODEMOD.transform(
            TRAIN.replace("train(None", "scaler = torch.amp.GradScaler()\n    train(None"), "f.py"
        )
        is None
    )


def test_autocast_opens_a_gate_that_only_let_cuda_through() -> None:
    gate = (
        "from contextlib import nullcontext\n"
        "ctx = nullcontext() if device_type == 'cpu' else torch.amp.autocast(device_type, dtype)\n"
    )
    source = TRAIN.replace("import gc\n", "import gc\n" + gate)
    after = changed(autocast.CODEMOD, source)
    assert (
        "ctx = torch.autocast(device_type=\"cpu\", dtype=torch.bfloat16) if device_type == 'cpu' else torch.amp"
        in after
    )


def test_host_waits_are_taken_out_of_the_loop_only() -> None:
    after = changed(host_waits.CODEMOD, TRAIN + "torch.cuda.empty_cache()\n")
    assert after.count("empty_cache()") == 1 and "set_detect_anomaly(False)" in after
    alone = TRAIN.replace(
        "        torch.cuda.empty_cache()", "        if device:\n            torch.cuda.empty_cache()"
    )
    assert "        if device:\n            pass\n" in changed(host_waits.CODEMOD, alone)


def test_evaluation_gets_no_graph_and_training_keeps_its_own() -> None:
    after = changed(eval_no_grad.CODEMOD, TRAIN)
    assert after.count("@torch.no_grad()\ndef evaluate") == 1 and "@torch.no_grad()\ndef train" not in after
    for word in ("torch.enable_grad()", "loss.backward()", "torch.autograd.grad(a, b)"):
        refused = TRAIN.replace("        model.eval()\n", "").replace(
            "    model.eval()\n", f"    model.eval()\n    {word}\n"
        )
        assert eval_no_grad.CODEMOD.transform(refused, "file.py") is None


def test_batches_are_copied_from_pinned_memory() -> None:
    source = TRAIN.replace(
        "import gc\n", "import gc\nfrom torch.utils.data import DataLoader\nloader = DataLoader(data, 8)\n"
    )
    after = changed(pin_memory.CODEMOD, source)
    assert "DataLoader(data, 8, pin_memory=True)" in after
    assert "x.to(device, non_blocking=True), y.to(device, non_blocking=True)" in after
    assert "cpu" not in pin_memory.CODEMOD.hardware
    assert pin_memory.CODEMOD.transform(TRAIN.replace(".to(device)", ".to(torch.float64)"), "file.py") is None


def test_tf32_stands_behind_the_imports() -> None:
    after = changed(tf32.CODEMOD, TRAIN)
    assert after.startswith('import gc\nimport torch\n\ntorch.set_float32_matmul_precision("high")\n')
    assert tf32.CODEMOD.numerics == "reduced"
    assert tf32.CODEMOD.transform(TRAIN + "torch.backends.cuda.matmul.allow_tf32 = True\n", "file.py") is None


def test_all_codemods_go_together_in_any_file() -> None:
    """Composed in the registry's order, the results still parse and nothing applies twice."""
    source = TRAIN
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for codemod in CODEMODS:
            source = codemod.transform(source, "file.py") or source
        compile(source, "file.py", "exec")
    assert all(codemod.transform(source, "file.py") is None for codemod in CODEMODS)


BLOCKS = dedent(
    """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3)) for _ in range(3)])

        def forward(self, x):
            # the trunk
            for block in self.blocks:
                x = block(x)  # one block
            return x
    """
)


def test_checkpointed_blocks_give_the_same_bits() -> None:
    """Dropout included: the random state is restored before a block runs again."""
    after = changed(checkpointing.CODEMOD, BLOCKS)
    assert "# the trunk" in after and "            else:\n                x = block(x)  # one block\n" in after
    results = []
    for text in (BLOCKS, after):
        namespace: dict = {}
        exec(text, namespace)
        torch.manual_seed(0)
        net = namespace["Net"]()
        result = net(torch.ones(4, 6))
        result.square().sum().backward()
        results.append([result, *(p.grad for p in net.parameters())])
        with torch.no_grad():
            net(torch.ones(4, 6))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(
    "change",
    [
        ("x = block(x)", "x, aux = block(x)"),
        ("x = block(x)", "x = block(y)"),
        ("x = block(x)", "x = block(x) + x"),
        ("return x", "self.seen.append(x)\n        return x"),
        ("nn.GELU()", "nn.BatchNorm1d(6)"),
        ("def forward", "def generate"),
    ],
)
def test_checkpointing_refuses(change: tuple[str, str]) -> None:
    assert checkpointing.CODEMOD.transform(BLOCKS.replace(*change), "file.py") is None
