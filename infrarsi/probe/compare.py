"""Compare files of tensors, as a program of the training interpreter: `python compare.py < comparisons.json`.

Each comparison names a candidate, a reference and any number of others (files that `weights.save` wrote). Tensors whose
names differ in their numbers only (the layers of a model, the experts of a layer) form one group. Written to standard
output, per group: how many tensors, the reference's Euclidean norm, the distance of the candidate and of each other
from the reference. Names that only one side has are listed. All in float64.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from torch import Tensor

DIGITS = re.compile(r"\d+")


def read(path: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (about, tensors) of one file."""
    content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    return content["about"], content["tensors"]


def compare(candidate: str, reference: str, others: list[str]) -> dict[str, Any]:
    """Return the groups' norms and distances, and what does not match in names or shapes."""
    about, mine = read(candidate)
    _, wanted = read(reference)
    rest = [read(path)[1] for path in others]
    groups: dict[str, list[float]] = {}
    unlike = sorted(set(mine) ^ set(wanted))
    for name in sorted(set(mine) & set(wanted)):
        right = wanted[name].double()
        if mine[name].shape != right.shape:
            unlike.append(name)
            continue
        squares = [float((right * right).sum())]
        for side in (mine, *rest):
            # What a variant of the reference does not have says nothing of its rounding: no distance, and no licence.
            known = name in side and side[name].shape == right.shape
            squares.append(float((side[name].double() - right).square().sum()) if known else 0.0)
        sums = groups.setdefault(DIGITS.sub("*", name), [0.0] * (1 + len(squares)))
        sums[0] += 1
        for index, value in enumerate(squares, start=1):
            sums[index] += value
    return {
        "about": about,
        "unlike": unlike,
        "groups": [
            [name, int(sums[0]), sums[1] ** 0.5, sums[2] ** 0.5, [v**0.5 for v in sums[3:]]]
            for name, sums in groups.items()
        ],
    }


def main() -> None:
    """Read comparisons from standard input, write their results to standard output."""
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    results = [compare(c["candidate"], c["reference"], list(c.get("others") or ())) for c in asked]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
