"""The table of a run in progress, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infrarsi.report.live_state import LiveState
from infrarsi.report.text import clean, describe, duration, line

if TYPE_CHECKING:
    from rich.console import Group

FRAME_LINES = 8


def live_table(state: LiveState, height: int) -> Group:
    """Return what is drawn: the last trials that fit, the best so far with its interval, cost and what is left."""
    from rich import box
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("no", "for", "candidate", "result"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name == "no" else "left")
    for trial in state.trials[-max(1, min(10, height - FRAME_LINES)) :]:
        style = "" if trial.outcome.kind == "ok" else "red"
        cells = (str(trial.number), trial.role, describe(trial.candidate), clean(state.trial_text(trial)))
        table.add_row(*(Text(line(cell), style=style) for cell in cells))
    left = state.eta()
    parts: list[RenderableType] = [
        Text(line(f"run {state.run}: {state.goal}"), no_wrap=True, overflow="ellipsis"),
        table,
        Text(line(state.headline()), style="bold", no_wrap=True, overflow="ellipsis"),
        Text(line(f"{duration(state.elapsed)} so far; {state.cost()}"), no_wrap=True, overflow="ellipsis"),
        Text(line(left or state.stage), style="dim", no_wrap=True, overflow="ellipsis"),
    ]
    if left and state.stage:
        parts.append(Text(line(f"now: {state.stage}"), style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)
