"""What a codemod is: a rewrite of one file that keeps its meaning, or nothing when it is not sure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from infrarsi.propose.codemods.tree import Tree
from infrarsi.records import Numerics


@dataclass(frozen=True)
class Codemod:
    """One catalogue optimisation as a rewrite of source files.

    `numerics` is our own honest class (never the proposer's claim), `catalogue_id` names the entry that carries
    the expected factors, `hardware` where it can pay. `words` all occur in every file that it can apply to, which
    saves parsing the others. `evidence` are words of which one must occur somewhere in the repository (a train loop
    does not say whether another file wraps its model). `needs` and `conflicts` name other codemods.
    """

    id: str
    title: str
    numerics: Numerics
    catalogue_id: str
    why: str
    rewrite: Callable[[Tree], cst.Module | None]
    hardware: tuple[str, ...] = ("cpu", "cuda", "rocm")
    words: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    def transform(self, source: str, path: str) -> str | None:
        """Return the rewritten source, None when nothing applies, when unsure, or when the file does not parse.

        The result always parses and always differs from `source`. A second application returns None.
        """
        if not path.endswith(".py"):
            return None
        tree = _tree(source) if all(word in source for word in self.words) else None
        result = self.rewrite(tree) if tree is not None else None
        if result is None or result.code == source:
            return None
        compile(result.code, path, "exec")  # a codemod that writes broken code is a bug: let it show
        return result.code


@functools.lru_cache(maxsize=64)
def _tree(source: str) -> Tree | None:
    """Return the parsed file, None when it is not valid Python. Trees are never changed, so codemods share them."""
    try:
        compile(source, "file.py", "exec", dont_inherit=True)
        return Tree(cst.parse_module(source))
    except (cst.ParserSyntaxError, SyntaxError, ValueError):
        return None
