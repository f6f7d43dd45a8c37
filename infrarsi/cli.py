"""The command line: parse, call one command, hand its result to a reader, set the exit code. Nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from infrarsi import __version__
from infrarsi.errors import ExitCode, InfrarsiError

HERE = Path()
as_json = click.option("--json", "json_", is_flag=True, help="Write one JSON object to stdout, also on failure.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="git-infrarsi")
def cli() -> None:
    """Verified speed-ups of distributed training, as git commits.

    \b
    git infrarsi init "make this training faster, change nothing it learns"
    git infrarsi doctor      calibrate this machine
    git infrarsi run         search, then verify against the baseline
    git infrarsi report      what won, what it cost, what was refused
    git infrarsi apply       one signed commit on infrarsi/promoted
    """


@cli.command()
@click.argument("sentence", required=False, default="")
@click.option("--command", "command_", default="", metavar="STR", help="The training's launch command or script.")
@click.option(
    "--numerics", type=click.Choice(["bitwise", "reorder", "reduced", "semantic"]), help="Widest class allowed."
)
@click.option("--python", default="", metavar="PATH", help="Interpreter of the training (default: python3 on PATH).")
@click.option("--force", is_flag=True, help="Make a new contract in place of the one that stands here.")
@as_json
def init(sentence: str, command_: str, numerics: Any, python: str, force: bool, json_: bool) -> None:
    """Lock scope, workload, loss and timing invariants into a contract."""
    from infrarsi.commands.init import InitOptions
    from infrarsi.commands.init import init as act

    options = InitOptions(sentence=sentence, command=command_, numerics=numerics, force=force, python=python)
    _finish("init", json_, lambda: act(HERE, options, _engine(), _notify(json_)))


@cli.command()
@click.option("--repeats", default=4, show_default=True, type=click.IntRange(2, 50), help="A/A runs of the baseline.")
@as_json
def doctor(repeats: int, json_: bool) -> None:
    """Profile the baseline's phases and calibrate this machine's noise."""
    from infrarsi.commands.doctor import doctor as act

    _finish("doctor", json_, lambda: act(HERE, _engine(), _notify(json_), repeats=repeats))


@cli.command()
@click.option("--trials", type=click.IntRange(1), help="Search trials (default: the contract's budget).")
@click.option("--seconds", type=click.FloatRange(1), help="Wall time, verification included.")
@click.option("--seed", default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--patch", "patches", multiple=True, type=click.Path(path_type=Path, exists=True), help="A patch to try too."
)
@click.option("--fresh", is_flag=True, help="Start another run, even where one can be resumed.")
@as_json
def run(
    trials: int | None, seconds: float | None, seed: int, patches: tuple[Path, ...], fresh: bool, json_: bool
) -> None:
    """Search settings and patches together, then verify the best against the baseline.

    With --json, events are written as NDJSON to stdout while it runs; the last line is the result.
    """
    from infrarsi.commands.run import RunOptions
    from infrarsi.commands.run import run as act

    options = RunOptions(trials, seconds, seed, patches, fresh)
    _finish("run", json_, lambda: act(HERE, options, _engine(), _notify(json_, stream=True)), one_line=True)


@cli.command()
@click.argument("run", required=False)
@click.option("--markdown", is_flag=True, help="Write markdown to stdout.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write one HTML page.")
@as_json
def report(run: str | None, markdown: bool, html: Path | None, json_: bool) -> None:
    """Show what a run found: verdict, interval, trials, cost, audit."""
    from infrarsi.commands.report import report as act

    def write(result: Any) -> str | None:
        if html is not None:
            from infrarsi.report.html import render_html

            html.write_text(render_html(result), encoding="utf-8")
            return f"wrote {html}\n"
        if markdown:
            from infrarsi.report.markdown import render_markdown

            return render_markdown(result)
        return None

    _finish("report", json_, lambda: act(HERE, run), write=write if html or markdown else None, paged=True)


@cli.command()
@click.argument("run", required=False)
@click.option("--branch", default="infrarsi/promoted", show_default=True, help="Branch that gets the signed commit.")
@as_json
def apply(run: str | None, branch: str, json_: bool) -> None:
    """Commit the accepted change, signed, with an audit trailer."""
    from infrarsi.commands.apply import apply as act

    _finish("apply", json_, lambda: act(HERE, run, branch))


@cli.command()
@click.argument("commit")
@as_json
def verify(commit: str, json_: bool) -> None:
    """Verify a promoted commit: signature, contract, scope, evidence, interval."""
    from infrarsi.commands.verify import verify as act

    result = _finish("verify", json_, lambda: act(HERE, commit))
    if result.decision != "pass":
        sys.exit(ExitCode.NEGATIVE)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("extra", nargs=-1, type=click.UNPROCESSED)
def launch(extra: tuple[str, ...]) -> None:
    """Run the training with the promoted settings, without the probe."""
    from infrarsi.commands.launch import launch as act

    plan = _guard("launch", False, lambda: act(HERE, extra))
    os.chdir(plan.folder)
    os.execvpe(plan.argv[0], plan.argv, {**os.environ, **dict(plan.environment)})


@cli.command()
@as_json
def status(json_: bool) -> None:
    """Show where this repository stands, and the next command."""
    from infrarsi.commands.status import status as act

    _finish("status", json_, lambda: act(HERE))


@cli.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, remove nothing.")
@click.option("--days", default=30.0, show_default=True, help="Age of what is removed.")
@as_json
def gc(dry_run: bool, days: float, json_: bool) -> None:
    """Remove old worktrees, losers and logs; never evidence."""
    from infrarsi.commands.gc import gc as act

    _finish("gc", json_, lambda: act(HERE, dry_run=dry_run, days=days))


@cli.command()
@click.argument("folder", default="infrarsi-demo", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace an earlier demo in that folder.")
@as_json
def demo(folder: Path, force: bool, json_: bool) -> None:
    """Make a small real training repository and run everything on it."""
    from infrarsi.commands.demo import demo as act

    def tell(text: str) -> None:
        click.secho(f"\n{text}", bold=True, err=json_)

    def show(result: object) -> None:
        if not json_:
            _draw(result)

    _finish("demo", json_, lambda: act(folder, _engine(), _notify(json_), tell, show, force=force))


@cli.command()
@click.option("--quick", is_flag=True, help="Every case of ring 1, and a few trials of one process.")
@click.option("--slow", is_flag=True, help="Also the cases that compile.")
@click.option("--trainer", type=click.Choice(["dense", "moe"]), help="Cases of one shipped trainer only.")
@click.option("--case", "names", multiple=True, metavar="NAME", help="This case only (may be given several times).")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the training.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 1000), help="Seeds to go through.")
@click.option("--ranks", type=click.IntRange(1, 64), help="Processes per trial (default: 2; with --quick: 1).")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Work in DIR, and keep it."
)
@click.option("--list", "list_", is_flag=True, help="List the cases, judge none.")
@as_json
def selftest(json_: bool, list_: bool, **options: Any) -> None:
    """Run every known cheat, and honest changes, against this installation."""
    from infrarsi.commands.selftest import SelfTestOptions, list_cases
    from infrarsi.commands.selftest import selftest as act

    chosen = SelfTestOptions(**options)
    if list_:
        _finish("selftest", json_, lambda: list_cases(chosen), paged=True)
        return
    result = _finish("selftest", json_, lambda: act(chosen, _engine(), _notify(json_)), paged=True)
    if result.wrong:
        sys.exit(ExitCode.NEGATIVE)


def _engine() -> Any:
    from infrarsi.trial.local import LocalEngine

    return LocalEngine()


def _notify(json_: bool, stream: bool = False) -> Any:
    """Return the event sink: NDJSON on stdout for `run --json`, else a live view or plain lines on stderr."""
    from infrarsi.report.live import event_sink

    return event_sink(json_lines=json_ and stream, quiet=json_ and not stream, color=_color(sys.stderr))


def _finish(
    name: str,
    json_: bool,
    act: Callable[[], Any],
    *,
    write: Callable[[Any], str | None] | None = None,
    paged: bool = False,
    one_line: bool = False,
) -> Any:
    """Run a verb and write its result with the reader that was asked for."""
    result = _guard(name, json_, act)
    if json_:
        from infrarsi.report.envelope import success

        click.echo(success(name, result, one_line=one_line))
    elif write is not None:
        click.echo(write(result), nl=False)
    else:
        _draw(result, paged=paged)
    return result


def _guard(name: str, json_: bool, act: Callable[[], Any]) -> Any:
    """Turn errors into three lines (or JSON) and the exit code; unknown ones leave a report that can be pasted."""
    from infrarsi.commands.interrupts import interrupts

    try:
        with interrupts():
            return act()
    except InfrarsiError as error:
        _fail(name, json_, error)
    except KeyboardInterrupt:
        _fail(name, json_, InfrarsiError("stopped", hint=f"git infrarsi {name} starts again"), ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001  the one place where anything unknown becomes a report
        from infrarsi.report.crash import crash_error

        _fail(name, json_, crash_error(name, error))


def _fail(name: str, json_: bool, error: InfrarsiError, code: int | None = None) -> None:
    if json_:
        from infrarsi.report.envelope import failure

        click.echo(failure(name, error))
    else:
        from infrarsi.report.errors import render_error

        click.echo(render_error(error, color=_color(sys.stderr)), err=True, nl=False)
    sys.exit(error.exit_code if code is None else code)


def _draw(result: object, *, paged: bool = False) -> None:
    from infrarsi.report.readers import draw

    color = _color(sys.stdout)
    text = draw(result, color=color)
    if paged and sys.stdout.isatty() and text.count("\n") > shutil.get_terminal_size().lines:
        click.echo_via_pager(text, color=color)
    else:
        click.echo(text, nl=False)


def _color(stream: Any) -> bool:
    """Colour as git does: NO_COLOR, then color.infrarsi and color.ui, then whether it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    from infrarsi.vcs.door import colorbool

    return colorbool("color.infrarsi", stream.isatty())


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="git-infrarsi")
