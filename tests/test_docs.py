"""Docs that quote the command line and the configuration agree with them."""

import re
from pathlib import Path

import click
import pytest

from infrarsi.cli import cli
from infrarsi.contract.intent import parse
from infrarsi.errors import ExitCode

ROOT = Path(__file__).parent.parent
MANUAL = (ROOT / "docs" / "git-infrarsi.1").read_text().replace("\\-", "-")
README = (ROOT / "README.md").read_text()


def options(command):
    return {text for item in command.params if isinstance(item, click.Option) for text in item.opts}


def chapter(verb):
    return re.search(rf"^\.SS {verb}\b.*?(?=^\.S[SH])", MANUAL, re.M | re.S).group(0)


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_the_manual_has_every_verb_and_option(verb):
    text = chapter(verb)
    documented = set(re.findall(r"^\.BI? (--[a-z-]+)", text, re.M))
    assert documented == options(cli.commands[verb]) - {"--json"}
    synopsis = next(line for line in MANUAL.splitlines() if f"git infrarsi {verb}\\fR" in line)
    assert set(re.findall(r"\\fB(--[a-z-]+)\\fR", synopsis)) == documented


def test_the_readme_uses_options_that_exist():
    known = {"--ff-only", "--standalone", "--nproc_per_node"} | {o for c in cli.commands.values() for o in options(c)}
    for verb, rest in re.findall(r"git infrarsi ([a-z]+)([^\n|`]*)", README):
        assert verb in cli.commands, verb
        assert set(re.findall(r"--[a-z][a-z_-]+", rest)) <= known


def test_every_exit_code_is_explained():
    for code in ExitCode:
        assert re.search(rf"^\| {int(code)} \|", README, re.M)
        assert f"\n.B {int(code)}\n" in MANUAL


def test_the_example_configuration_is_valid_and_shows_every_table():
    text = (ROOT / "infrarsi.toml.example").read_text()
    intent = parse(text, "infrarsi.toml.example")
    assert intent.budget.memory_bytes == 20 * 2**30 and len(intent.knobs) == 3
    for table in ("[contract]", "[workload]", "[scope]", "[budget]", "[launch]", "[search]", "[[knobs]]"):
        assert f"\n{table}\n" in text


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
