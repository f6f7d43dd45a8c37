"""Recognise attention that is spelled out: from the final product back to queries, keys, scale and mask.

Everything here reads and decides; `sdpa` edits. A step that is not known for certain ends the attempt.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import libcst as cst

from infrarsi.propose.codemods.forms import (
    Plan,
    changes_in_place,
    converted,
    group,
    new_value,
    product_of,
    unguarded,
    untransposed,
)
from infrarsi.propose.codemods.masks import Masked, MaskReader
from infrarsi.propose.codemods.scalars import Facts
from infrarsi.propose.codemods.tree import Tree, as_ast, assigned_names, dotted, names_in, statement_ast, text, walk

# einsum equations with their letters renamed in order of appearance. Scores: are the heads behind the sequence?
_SCORES = {"abcd,abed->abce": False, "abc,adc->abd": False, "abcd,aecd->acbe": True}
# Output: are the heads behind the sequence in the values, and in the result?
_OUTPUT = {
    "abcd,abde->abce": (False, False),
    "abc,acd->abd": (False, False),
    "abcd,adbe->acbe": (True, True),
    "abcd,abde->acbe": (False, True),
    "abcd,adbe->abce": (True, False),
}


@dataclass
class Block:
    """One list of statements in one function, with what is known about the names that it uses."""

    tree: Tree
    definition: cst.FunctionDef
    owner: cst.ClassDef | None
    body: cst.IndentedBlock
    statements: list[ast.stmt | None] = field(default_factory=list)
    facts: Facts = field(init=False)

    def __post_init__(self) -> None:
        self.statements = [
            statement_ast(item) if isinstance(item, (cst.SimpleStatementLine, cst.If)) else None
            for item in self.body.body
        ]
        self.facts = Facts(self.tree, self.definition, self.owner)

    def definition_of(self, name: str, before: int) -> int | None:
        """Return the index of the last statement above `before` that binds or changes `name`."""
        for index in range(before - 1, -1, -1):
            statement = self.statements[index]
            if name in assigned_names(self.body.body[index]) or (
                statement is not None and changes_in_place(statement, name)
            ):
                return index
        return None

    def value_of(self, node: ast.expr, before: int) -> ast.expr:
        """Follow a plain name to the expression that this block last assigned to it, else return the node."""
        if isinstance(node, ast.Name):
            index = self.definition_of(node.id, before)
            statement = self.statements[index] if index is not None else None
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                return statement.value
        return node


def trace(block: Block, index: int, product: cst.BaseExpression) -> Plan | None:
    """Return the plan for `product` (in statement `index`) when it is attention that can be replaced."""
    found = product_of(block.tree, as_ast(product))
    if found is None:
        return None
    probabilities, value, equation = found
    output = _OUTPUT.get(equation) if equation else (False, False)
    reader = _Reader(block, index)
    if output is None or not reader.probabilities(probabilities) or reader.query is None or reader.key is None:
        return None
    if not reader.is_safe(value, product):
        return None
    return Plan(
        query=reader.query,
        key=reader.key,
        value=value,
        consumed=frozenset(reader.consumed),
        scale=reader.scale(),
        mask=reader.mask,
        causal=reader.causal,
        dropout=reader.dropout,
        swap_scores=reader.swapped,
        swap_output=output,
    )


class _Reader:
    """Walks from the probabilities back to `q @ k^T`, and keeps what it passes."""

    def __init__(self, block: Block, index: int) -> None:
        self.block = block
        self.final = index
        self.at = index
        self.consumed: list[int] = []
        self.chain: set[str] = set()
        self.reads: list[tuple[ast.expr, int]] = []  # expressions that move down, with where they stood
        self.query: ast.expr | None = None
        self.key: ast.expr | None = None
        self.swapped = False
        self.factors: list[str] = []
        self.mask: str | None = None
        self.causal = False
        self.dropout: str | None = None
        self.guard: str | None = None  # the mask of `if mask is not None:` around the step just read

    def step(self, node: ast.expr) -> ast.expr | None:
        """Follow the names of the chain; each definition is consumed. None when a change is not understood."""
        self.guard = None
        while isinstance(node, ast.Name):
            index = self.block.definition_of(node.id, self.at)
            statement = self.block.statements[index] if index is not None else None
            if index is None or statement is None or self.guard is not None:
                return None
            guard, statement = unguarded(statement)
            value = new_value(statement, node.id)
            if value is None:
                return None
            self.chain.add(node.id)
            self.consumed.append(index)
            self.at, self.guard, node = index, guard, value
        return node

    def probabilities(self, node: ast.expr) -> bool:
        """Dropout and casts, then the softmax."""
        value = self.step(node)
        if not isinstance(value, ast.Call) or self.guard is not None:
            return False
        if (dropped := self._dropout(value)) is not None:
            inner, self.dropout = dropped
            return self.probabilities(inner)
        if (inner_cast := converted(value)) is not None:
            return self.probabilities(inner_cast)
        scores = self._softmax(value)
        return scores is not None and self.scores(scores)

    def scores(self, node: ast.expr) -> bool:
        """Scale, one mask and casts in any order that the fused call can express, then the product."""
        value = self.step(node)
        if value is None:
            return False
        if self.guard is None:
            if (found := product_of(self.block.tree, value)) is not None:
                return self._operands(*found)
            if isinstance(value, ast.Call) and (inner := converted(value)) is not None:
                return self.scores(inner)
        at = self.at
        masks = MaskReader(self.block.tree, self.block.facts, lambda item: self.block.value_of(item, at))
        masked = masks.read(value)
        if masked is not None:
            return self._masked(masked) and self.scores(masked.scores)
        if self.guard is not None or (rest := self._factor(value)) is None:
            return False
        return self.scores(rest)

    def _masked(self, masked: Masked) -> bool:
        """Keep one mask. A factor already read is applied on top of it, which only a very low fill survives."""
        if self.mask is not None or self.causal or (self.factors and not masked.strong):
            return False
        self.mask, self.causal = masked.source, masked.causal
        if masked.source is not None:
            self.reads.append((masked.mask, self.at))
        if self.guard is None:
            return True
        if masked.causal or self.guard not in names_in(masked.mask):
            return False
        self.mask = f"None if {self.guard} is None else {masked.source}"
        return True

    def _factor(self, value: ast.expr) -> ast.expr | None:
        """Take one numeric factor off a product or quotient; returns what is left."""
        is_number = self.block.facts.is_number
        match value:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                rest, factor, shown = (left, right, "{}") if is_number(right) else (right, left, "{}")
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                rest, factor, shown = left, right, "1.0 / {}"
            case _:
                return None
        if not is_number(factor):
            return None
        self.factors.append(shown.format(group(factor) if shown != "{}" else ast.unparse(factor)))
        self.reads.append((factor, self.at))
        return rest

    def _operands(self, query: ast.expr, key: ast.expr, equation: str) -> bool:
        if equation:
            if equation not in _SCORES:
                return False
            self.swapped = _SCORES[equation]
        while (rest := self._factor(query)) is not None:
            query = rest
        self.query = query
        self.reads.append((query, self.at))
        self.key = key if equation else self._untransposed(key)
        self.reads.append((self.key, self.at))
        return True

    def _untransposed(self, node: ast.expr) -> ast.expr:
        """Return k for `k.transpose(-2, -1)`, also when that has a name of its own; else transpose once more."""
        if (inner := untransposed(self.block.tree, node)) is not None:
            return inner
        if isinstance(node, ast.Name):
            index = self.block.definition_of(node.id, self.at)
            statement = self.block.statements[index] if index is not None else None
            value = new_value(statement, node.id) if statement is not None else None
            inner = untransposed(self.block.tree, value) if value is not None else None
            if index is not None and inner is not None:
                self.chain.add(node.id)
                self.consumed.append(index)
                self.at = index
                return inner
        return ast.parse(f"{group(node)}.transpose(-2, -1)", mode="eval").body

    def _softmax(self, call: ast.Call) -> ast.expr | None:
        full = self.block.tree.names.full(call.func)
        arguments = list(call.args)
        if full in ("torch.softmax", "torch.nn.functional.softmax") and arguments:
            scores, arguments = arguments[0], arguments[1:]
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "softmax"
            and not full
            and not self._is_module(call)
        ):
            scores = call.func.value
        else:
            builder = call.func if isinstance(call.func, ast.Call) else self.block.facts.module(call.func)
            if builder is None or self.block.tree.names.full(builder.func) != "torch.nn.Softmax" or len(arguments) != 1:
                return None
            scores, call, arguments = arguments[0], builder, list(builder.args)
        axis = [item.value for item in call.keywords if item.arg == "dim"] + arguments[:1]
        return scores if axis and text(axis[0]) in ("-1", "3") else None

    def _is_module(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Attribute) and self.block.facts.module(call.func) is not None

    def _dropout(self, call: ast.Call) -> tuple[ast.expr, str] | None:
        """Return what is dropped from and the probability, for `F.dropout(…)` and a module `self.dropout(…)`."""
        if self.dropout is not None or not call.args:
            return None
        names = self.block.tree.names
        builder = self.block.facts.module(call.func)
        if builder is not None and names.full(builder.func) == "torch.nn.Dropout" and len(call.args) == 1:
            layer = dotted(call.func)
            return call.args[0], f"{layer}.p if {layer}.training else 0.0"
        if names.full(call.func) != "torch.nn.functional.dropout":
            return None
        given = dict(zip(("input", "p", "training"), call.args, strict=False))
        given |= {item.arg: item.value for item in call.keywords if item.arg}
        rate = ast.unparse(given["p"]) if "p" in given else "0.5"
        training = ast.unparse(given["training"]) if "training" in given else "True"
        self.reads += [(given[name], self.at) for name in ("p", "training") if name in given]
        return given["input"], rate if training == "True" else f"{rate} if {training} else 0.0"

    def scale(self) -> str | None:
        """Return the `scale` argument, None where the fused call's own default says the same."""
        if not self.factors:
            return "1.0"
        shown = self.factors[0] if len(self.factors) == 1 else " * ".join(f"({item})" for item in self.factors)
        assert self.query is not None and self.key is not None
        operands = {text(self.query), text(self.key)}
        sizes = {f"{name}{size}" for name in operands for size in (".size(-1)", ".shape[-1]", ".size(dim=-1)")}
        root = {f"math.sqrt({size})" for size in sizes} | {f"({size} ** 0.5)" for size in sizes}
        default = {f"{one} / {item}" for item in root for one in ("1.0", "1")} | {f"{size} ** (-0.5)" for size in sizes}
        return None if shown in default else shown

    def is_safe(self, value: ast.expr, product: cst.BaseExpression) -> bool:
        """Check that nothing else sees the consumed names, and that what moves down reads the same values there."""
        self.reads.append((value, self.final))
        for expression, at in self.reads:
            names = names_in(expression)
            for index in range(self.final):
                changed = assigned_names(self.block.body.body[index]) & names
                moved_over = index >= at and index not in self.consumed
                if changed and (moved_over or (index < at and index in self.consumed)):
                    return False
        return not self._seen_elsewhere(product)

    def _seen_elsewhere(self, product: cst.BaseExpression) -> bool:
        """Say whether a consumed name is read between the first consumed statement and its next assignment."""
        block = self.block
        inside = {id(node) for index in self.consumed for node in walk(block.body.body[index])}
        inside |= {id(node) for node in walk(product)}
        order = {id(node): number for number, node in enumerate(walk(block.definition))}
        final = block.body.body[self.final]
        if not self.consumed:
            return False
        first = min(order[id(block.body.body[index])] for index in self.consumed)
        last = max(order[id(node)] for node in walk(final))
        rebound = assigned_names(final)
        looped = any(isinstance(above, (cst.For, cst.While)) for above in block.tree.ancestors(block.body))
        for node in walk(block.definition):
            if not isinstance(node, cst.Name) or node.value not in self.chain or id(node) in inside:
                continue
            parent = block.tree.parent(node)
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if isinstance(parent, (cst.AssignTarget, cst.Arg)) and getattr(parent, "value", None) is not node:
                continue
            if order[id(node)] < first and not looped:
                continue
            if order[id(node)] > last and node.value in rebound and not looped:
                continue
            return True
        return False
