"""Attention before and after the rewrite gives the same outputs and gradients, and doubtful code is left alone."""

import textwrap

import pytest
import torch

from infrarsi.propose.codemods.sdpa import CODEMOD

HEADER = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"


def attention_class(body: str, init: str = "", arguments: str = "self, q, k, v") -> str:
    lines = [
        "class Attention(nn.Module):",
        "    def __init__(self, size=16, dim=8, p=0.0):",
        "        super().__init__()",
    ]
    lines += textwrap.indent(textwrap.dedent(init).strip("\n"), " " * 8).split("\n")
    lines += ["", f"    def forward({arguments}):", "        B, H, T, D = q.shape"]
    lines += textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8).split("\n")
    return HEADER + "\n".join(lines) + "\n"


def load(source: str):
    namespace: dict = {}
    exec(compile(source, "model.py", "exec"), namespace)
    torch.manual_seed(0)
    return namespace["Attention"]()


def outputs(source: str, *, layout: str = "bhtd", extra: tuple = (), dimensions: int = 4):
    module = load(source)
    torch.manual_seed(1)
    shape = {"bhtd": (2, 3, 6, 8), "bthd": (2, 6, 3, 8)}[layout] if dimensions == 4 else (2, 6, 8)
    tensors = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    result = module(*tensors, *extra)
    result.square().sum().backward()
    return [result, *(tensor.grad for tensor in tensors)]


def assert_same(source: str, **options):
    after = CODEMOD.transform(source, "model.py")
    assert after is not None and "scaled_dot_product_attention" in after and "softmax(" not in after
    assert CODEMOD.transform(after, "model.py") is None
    for old, new in zip(outputs(source, **options), outputs(after, **options), strict=True):
        torch.testing.assert_close(old, new, rtol=1e-4, atol=1e-5)
    return after


TRIL = 'self.register_buffer("bias", torch.tril(torch.ones(size, size)).view(1, 1, size, size))'
CAUSAL = {
    "minGPT": (
        TRIL,
        """
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:,:,:T,:T] == 0, float('-inf'))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return y
        """,
    ),
    "buffer made of a local, in-place mask": (
        'mask = torch.tril(torch.ones(size, size))\nself.register_buffer("mask", mask[None, None], persistent=False)',
        """
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D)
        scores.masked_fill_(self.mask[:, :, :T, :T] == 0, -1e9)
        return torch.matmul(torch.softmax(scores, -1), v)
        """,
    ),
    "boolean upper triangle": (
        'self.register_buffer("mask", torch.triu(torch.ones(size, size), diagonal=1).bool())',
        """
        scores = q @ k.mT
        scores = scores * D**-0.5
        scores = scores.masked_fill(self.mask[:T, :T], -torch.inf)
        weights = scores.softmax(dim=-1)
        return weights @ v
        """,
    ),
    "where with a low fill": (
        'self.register_buffer("bias", torch.tril(torch.ones((size, size), dtype=torch.bool)).view(1, 1, size, size))\n'
        "self.head_dim = dim",
        """
        w = torch.matmul(q, k.transpose(2, 3))
        w = w / (self.head_dim ** 0.5)
        w = torch.where(self.bias[:, :, :T, :T], w, torch.finfo(w.dtype).min)
        w = nn.functional.softmax(w, dim=-1).type_as(v)
        return torch.matmul(w, v)
        """,
    ),
    "made in forward": (
        "pass",
        """
        causal = torch.tril(torch.ones(T, T, device=q.device)).bool()
        att = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
        att = att.masked_fill(~causal, float("-inf"))
        att = att.softmax(-1)
        return torch.einsum("b h i j, b h j d -> b h i d", att, v)
        """,
    ),
    "llama": (
        "self.head_dim = dim",
        """
        mask = torch.triu(torch.full((T, T), float("-inf")), diagonal=1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        output = torch.matmul(scores, v)
        return output
        """,
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_forms_keep_outputs_and_gradients(name: str) -> None:
    init, body = CAUSAL[name]
    after = assert_same(attention_class(body, init))
    assert "is_causal=True" in after


PLAIN = {
    "no mask, no scale": "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\nreturn att @ v",
    "one expression": "return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1) @ v",
    "scaled query": "q = q * D ** -0.5\natt = q @ k.transpose(-2, -1)\natt = att.softmax(dim=-1)\nreturn att @ v",
    "scale inside": "att = (q * (D ** -0.5)) @ k.transpose(-2, -1)\nreturn att.softmax(-1) @ v",
    "key transposed first": "k_t = k.transpose(-2, -1)\natt = q @ k_t / 3.0\nreturn F.softmax(att, -1) @ v",
    "key overwritten": "k = k.transpose(-2, -1)\natt = q @ k / 3.0\nreturn F.softmax(att, -1) @ v",
    "two scales": "att = (q @ k.transpose(-2, -1)) * 0.5\natt = att / math.sqrt(D)\nreturn F.softmax(att, -1) @ v",
    "one name for all": "x = q @ k.transpose(-2, -1)\nx = F.softmax(x, dim=-1)\nx = x @ v\nreturn x * 2",
    "methods": "att = q.matmul(k.transpose(-1, -2))\natt = F.softmax(att, dim=-1)\nreturn att.matmul(v)",
}


@pytest.mark.parametrize("name", PLAIN)
def test_unmasked_forms(name: str) -> None:
    assert_same(attention_class(PLAIN[name], "pass"))


def test_heads_behind_the_sequence_are_moved_and_moved_back() -> None:
    body = """
    att = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)
    att = att.softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", att, v)
    """
    assert "transpose(1, 2)" in assert_same(attention_class(body, "pass"), layout="bthd")


def test_three_dimensions_and_a_single_head() -> None:
    source = HEADER + textwrap.dedent(
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("tril", torch.tril(torch.ones(16, 16)))

            def forward(self, q, k, v):
                B, T, C = q.shape
                # compute attention scores ("affinities")
                wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5  # (B, T, T)
                wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
                wei = F.softmax(wei, dim=-1)
                out = wei @ v  # (B, T, C)
                return out
        """
    )
    after = assert_same(source, dimensions=3)
    assert '# compute attention scores ("affinities")' in after
    assert "scale=" not in after
    assert "# (B, T, C)" in after


def test_optional_masks_are_handed_over() -> None:
    """Both a call without a mask and one with it must stay what they were."""
    boolean = attention_class(
        """
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(-1) @ v
        """,
        "pass",
        "self, q, k, v, mask=None",
    )
    additive = attention_class(
        """
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        if mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ v
        """,
        "pass",
        "self, q, k, v, mask=None",
    )
    keep = torch.ones(6, 6).tril()
    assert_same(boolean)
    assert_same(boolean, extra=(keep,))
    assert_same(additive)
    assert_same(additive, extra=(torch.randn(6, 6),))


def test_dropout_keeps_its_probability_and_its_mode() -> None:
    module = attention_class(
        "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\natt = self.drop(att)\nreturn att @ v",
        "self.drop = nn.Dropout(0.25)",
    )
    after = CODEMOD.transform(module, "model.py")
    assert after is not None and "dropout_p=self.drop.p if self.drop.training else 0.0" in after
    before_model, after_model = load(module).eval(), load(after).eval()
    q, k, v = torch.randn(3, 2, 3, 6, 8)
    torch.testing.assert_close(before_model(q, k, v), after_model(q, k, v))
    torch.manual_seed(0)
    means = [torch.stack([model.train()(q, k, v) for _ in range(600)]).mean(0) for model in (before_model, after_model)]
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0.15)
    functional = attention_class(
        "att = F.dropout(F.softmax(q @ k.transpose(-2, -1), dim=-1), p=0.1, training=self.training)\nreturn att @ v",
        "pass",
    )
    changed = CODEMOD.transform(functional, "model.py")
    assert changed is not None and "dropout_p=0.1 if self.training else 0.0" in changed


REFUSED = {
    "weights returned": "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\ny = att @ v\nreturn y, att",
    "weights kept": "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\nself.last = att\nreturn att @ v",
    "wrong axis": "att = F.softmax(q @ k.transpose(-2, -1), dim=1)\nreturn att @ v",
    "the scale is learnt": "att = F.softmax(q @ k.transpose(-2, -1) * self.temperature, dim=-1)\nreturn att @ v",
    "logit cap": "att = q @ k.transpose(-2, -1)\natt = 30 * torch.tanh(att / 30)\nreturn att.softmax(-1) @ v",
    "head mask": "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\natt = att * self.head_mask\nreturn att @ v",
    "flash path exists": (
        "if self.flash:\n    return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "att = F.softmax(q @ k.transpose(-2, -1), dim=-1)\nreturn att @ v"
    ),
    "query changed in between": (
        "att = q @ k.transpose(-2, -1)\nq = q + 1\natt = F.softmax(att, dim=-1)\nreturn att @ v + q"
    ),
    "finite fill, unknown mask": (
        "att = q @ k.transpose(-2, -1)\natt = att.masked_fill(self.pad == 0, -1e9)\nreturn att.softmax(-1) @ v"
    ),
    "scale after an added mask": (
        "att = q @ k.transpose(-2, -1)\natt = att + self.mask\natt = att / math.sqrt(D)\nreturn att.softmax(-1) @ v"
    ),
    "two masks": (
        "att = q @ k.transpose(-2, -1)\natt = att + self.mask\natt = att + self.other\nreturn att.softmax(-1) @ v"
    ),
    "changed in a branch": (
        "att = q @ k.transpose(-2, -1)\nif T > 3:\n    att = att - 1\n    att = att.abs()\n"
        "att = att.softmax(-1)\nreturn att @ v"
    ),
    "not a softmax of a product": "att = F.softmax(q, dim=-1)\nreturn att @ v",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_when_unsure(name: str) -> None:
    init = "self.temperature = nn.Parameter(torch.ones(1))\nself.last = None"
    assert CODEMOD.transform(attention_class(REFUSED[name], init), "model.py") is None
