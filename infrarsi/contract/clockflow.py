"""Follows measured times through a source: a training may log them, an edit may not decide anything by them (R-A2)."""

from __future__ import annotations

from collections import defaultdict

import libcst as cst
import libcst.matchers as m

from infrarsi.contract import staticnames
from infrarsi.contract.sourcewalk import Names, Report, Walk, code_of

_ROUNDS = 4  # t0 -> dt -> average -> rate: longer chains are followed no further
_ELAPSED = ("elapsed_time",)


def decisions(module: cst.Module, names: Names, report: Report) -> None:
    """Report every condition, index and loop that a measured time goes into."""
    flow = _Flow(names)
    for _ in range(_ROUNDS):
        before = sum(map(len, flow.timed.values()))
        module.visit(flow)
        if sum(map(len, flow.timed.values())) == before:
            break
    if flow.timed or flow.direct:
        module.visit(_Decisions(flow, report))


class _Flow(Walk):
    """Collects the names that hold a measured time, function by function."""

    def __init__(self, names: Names) -> None:
        super().__init__(lambda *_: None)
        self._names = names
        self.timed: dict[str, set[str]] = defaultdict(set)
        self.direct = False

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._give(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._give(node.target, node.value)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._give(node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._give(node.target, node.value)

    def _give(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if not self.source(value, self.function):
            return
        targets = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
        for one in targets:
            # An attribute can be read from any function.
            where = self.function if isinstance(one, cst.Name) else ""
            if isinstance(one, (cst.Name, cst.Attribute)):
                self.timed[where].add(code_of(one))

    def source(self, value: cst.CSTNode, function: str) -> str:
        """Return what in an expression is a measured time; nothing where none is."""
        scopes = [function]
        while scopes[-1]:
            scopes.append(scopes[-1].rpartition(".")[0])
        known = set().union(*(self.timed.get(scope, ()) for scope in scopes))
        for node in m.findall(value, m.Name() | m.Attribute()):
            if isinstance(node, (cst.Name, cst.Attribute)):
                if known and code_of(node) in known:
                    return code_of(node)
                if self._is_clock(node):
                    self.direct = True
                    return code_of(node)
        return ""

    def _is_clock(self, node: cst.Name | cst.Attribute) -> bool:
        if isinstance(node, cst.Attribute) and node.attr.value in _ELAPSED:
            return True
        return any((staticnames.rule_for(full) or ("",))[0] == "clock" for full in self._names.all_of(node))


class _Decisions(Walk):
    """Reports what is decided by a measured time."""

    def __init__(self, flow: _Flow, report: Report) -> None:
        super().__init__(report)
        self._flow = flow

    def visit_If(self, node: cst.If) -> None:
        self._decides(node.test)

    def visit_While(self, node: cst.While) -> None:
        self._decides(node.test)

    def visit_Assert(self, node: cst.Assert) -> None:
        self._decides(node.test)

    def visit_IfExp(self, node: cst.IfExp) -> None:
        self._decides(node.test)

    def visit_CompIf(self, node: cst.CompIf) -> None:
        self._decides(node.test)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        self._decides(node)

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:
        self._decides(node.left)

    def visit_For(self, node: cst.For) -> None:
        self._decides(node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._decides(node.iter)

    def visit_Match(self, node: cst.Match) -> None:
        self._decides(node.subject)

    def visit_SubscriptElement(self, node: cst.SubscriptElement) -> None:
        self._decides(node.slice)

    def _decides(self, node: cst.CSTNode) -> None:
        name = self._flow.source(node, self.function)
        if name:
            reason = f"{name} is a measured time; nothing may be decided by it"
            self.report(node, "clock", f"decision by {name}", reason, exact=True)
