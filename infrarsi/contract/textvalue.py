"""What text an expression makes, as far as that can be said without running it."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

# What turns text into other text that does not look like it.
_DISGUISES = (
    "chr",
    "bytes",
    "bytearray",
    "decode",
    "fromhex",
    "translate",
    "reversed",
    "swapcase",
    "b64decode",
    "rot13",
)


def text_of(node: cst.CSTNode) -> str | None:
    """Return the text of a string or of strings put together: `"a" + "b"`, `"".join(["a", "b"])`, `"ba"[::-1]`."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        value = node.evaluated_value
        if isinstance(value, bytes):
            return value.decode("latin-1")
        if isinstance(value, str):
            return value
        return _joined(node.left, node.right) if isinstance(node, cst.ConcatenatedString) else None
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _joined(node.left, node.right)
    if isinstance(node, cst.FormattedString):
        return _all(
            [p.value if isinstance(p, cst.FormattedStringText) else text_of(_expression(p)) for p in node.parts], ""
        )
    if isinstance(node, cst.Call):
        return _join_call(node)
    if isinstance(node, cst.Subscript) and m.matches(node, m.Subscript(slice=[m.SubscriptElement(_BACKWARDS)])):
        text = text_of(node.value)
        return None if text is None else text[::-1]
    return None


def is_assembled(node: cst.CSTNode) -> bool:
    """Return whether an expression hides the text that it makes: characters by number, text backwards or encoded."""
    if m.findall(node, m.Subscript(slice=[m.SubscriptElement(_BACKWARDS)])):
        return True
    called = (c.func for c in m.findall(node, m.Call()) if isinstance(c, cst.Call))
    names = {f.attr.value if isinstance(f, cst.Attribute) else getattr(f, "value", "") for f in called}
    return bool(names & set(_DISGUISES))


_BACKWARDS = m.Slice(lower=None, upper=None, step=m.UnaryOperation(operator=m.Minus()))


def _joined(left: cst.CSTNode, right: cst.CSTNode) -> str | None:
    first, second = text_of(left), text_of(right)
    return None if first is None or second is None else first + second


def _join_call(node: cst.Call) -> str | None:
    func = node.func
    if not (isinstance(func, cst.Attribute) and func.attr.value == "join" and len(node.args) == 1):
        return None
    between, values = text_of(func.value), node.args[0].value
    if between is None or not isinstance(values, (cst.List, cst.Tuple)):
        return None
    return _all([text_of(element.value) for element in values.elements], between)


def _all(parts: list[str | None], between: str) -> str | None:
    known = [part for part in parts if part is not None]
    return between.join(known) if len(known) == len(parts) else None


def _expression(part: cst.BaseFormattedStringContent) -> cst.CSTNode:
    return part.expression if isinstance(part, cst.FormattedStringExpression) else part
