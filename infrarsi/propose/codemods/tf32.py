"""TensorFloat-32 for float32 matrix products on CUDA."""

from __future__ import annotations

import libcst as cst

from infrarsi.propose.codemods.base import Codemod
from infrarsi.propose.codemods.loops import steps_optimizer, training_loops
from infrarsi.propose.codemods.tree import Tree, with_statement

_REFUSED = ("allow_tf32", "set_float32_matmul_precision", "fp32_precision", "use_deterministic_algorithms")


def _rewrite(tree: Tree) -> cst.Module | None:
    torch = tree.names.spelling("torch")
    source = tree.module.code
    if not torch or any(word in source for word in _REFUSED):
        return None
    if not training_loops(tree) or not steps_optimizer(tree.module) or "__main__" not in source:
        return None
    return with_statement(tree.module, f'{torch}.set_float32_matmul_precision("high")')


CODEMOD = Codemod(
    id="tf32",
    title="TensorFloat-32 matrix products",
    numerics="reduced",
    catalogue_id="tf32",
    why="float32 products on the tensor cores run several times faster with 10 instead of 23 bits of mantissa",
    rewrite=_rewrite,
    words=("backward", "__main__"),
    hardware=("cuda",),
)
