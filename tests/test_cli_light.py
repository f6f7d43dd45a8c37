"""`git infrarsi -h` must come at once: none of the heavy imports may be reached by it."""

import subprocess
import sys

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
