"""`git infrarsi -h` must come at once: none of the heavy imports may be reached by it."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = (
    "torch",
    "optuna",
    "scipy",
    "anthropic",
    "pydantic",
    "plotly",
    "libcst",
    "pygit2",
    "git",
    "numpy",
    "rich",
    "jinja2",
)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom infrarsi.cli import cli\n"
        "try:\n    cli(['-h'], standalone_mode=False)\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    assert done.stdout.strip().endswith("HEAVY []")


@pytest.mark.timing
def test_help_takes_at_most_half_longer_than_a_bare_click_program(tmp_path: Path) -> None:
    """Interleaved, medians: what is compared is the start-up of two programs on the same machine at the same time."""
    bare = tmp_path / "bare.py"
    bare.write_text(
        "import click\n@click.group()\ndef cli():\n    'Bare.'\n@cli.command()\ndef a():\n    'A.'\ncli()\n"
    )
    ours = "from infrarsi.cli import main; main()"
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(15):
        for name, argv in (("bare", [str(bare)]), ("ours", ["-c", ours])):
            started = time.perf_counter()
            subprocess.run([sys.executable, *argv, "--help"], stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - started)
    ratio = statistics.median(times["ours"]) / statistics.median(times["bare"])
    assert ratio <= 1.5, f"{ratio:.2f}"
