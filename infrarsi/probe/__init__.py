"""The probe: rides inside every rank of a trial and reports what the training did, without a change to its code.

Loaded by path under the name `_infrarsi_probe` (see `inject/sitecustomize.py`), so that the training's interpreter
needs nothing but torch. Nothing happens at import. The messages are newline-delimited JSON over a Unix socket.
"""

from __future__ import annotations

from collections.abc import Callable


def start(plan_file: str, clock: Callable[[], float]) -> bool:
    """Start the probe if this process runs the plan's entry; return whether it does.

    Reads the plan only, so that launchers and data-loader workers pay a few milliseconds.
    """
    import os
    import sys

    from .plan import is_entry, read_plan

    try:
        plan = read_plan(plan_file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"infrarsi: the plan {plan_file} cannot be read: {error}\n")
        return False
    if not is_entry(sys.orig_argv, plan.entry, plan.root, os.getcwd()):
        return False
    from .activate import activate

    return activate(plan, clock)
