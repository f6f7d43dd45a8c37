"""The same report through every reader; untrusted text stays text."""

import json
import re
from html.parser import HTMLParser

import ledgers
import pytest
from markdown_it import MarkdownIt

from infrarsi.report import page as pages
from infrarsi.report import terminal
from infrarsi.report.difftext import files_of
from infrarsi.report.html import render_html
from infrarsi.report.jsonreader import render_json
from infrarsi.report.markdown import block, code, escape, render_markdown
from infrarsi.report.readers import draw
from infrarsi.report.text import clean
from infrarsi.report.view import from_ledger

RUNS = ["accepted", "rejected", "undecided", "interrupted", "malicious"]
VOID = {"meta", "br", "img", "link"}
ESCAPE = re.compile(r"\x1b")


class Page(HTMLParser):
    """Collects elements and attributes; complains about tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", RUNS)
def test_html_loads_nothing_and_runs_nothing(report, name):
    page = Page(render_html(report(name)))
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    for _tag, attribute, value in page.attributes:
        assert attribute not in ("src", "href", "srcset", "data", "action", "xlink:href", "background")
        assert not attribute.startswith("on")
        assert "url(" not in (value or "")
    style = re.search(r"<style>(.*?)</style>", render_html(report("accepted")), re.S).group(1)
    assert "@import" not in style and "url(" not in style and "http" not in style
    assert "prefers-color-scheme: dark" in style


def test_html_has_the_three_figures(report):
    page = Page(render_html(report("accepted")))
    labels = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert labels == [
        "Speed-ups with their intervals",
        "Search trials in order, estimated speed-up",
        "Peak memory per device or rank, against the budget",
    ]
    assert any("budget 4.00 GiB" in text for text in page.text)


def test_html_of_malicious_text_shows_it_as_text(report):
    page = Page(render_html(report("malicious")))
    shown = "".join(page.text)
    assert "<script>alert(1)</script>" in shown
    assert "\x1b" not in shown and "\u202e" not in shown


def test_markdown_of_malicious_text_is_text(report):
    text = render_markdown(report("malicious", diff=ledgers.DIFF.replace("b = 3", ledgers.EVIL)))
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in inline}
    assert kinds <= {"text", "code_inline", "strong_open", "strong_close", "text_special"}, kinds
    html = [token.content for token in tokens if token.type == "html_block"]
    assert all("details" in block for block in html) and len(html) == 2
    (diff,) = [token.content for token in tokens if token.type == "fence"]
    assert "onerror" in diff
    prose = text.partition("<details>")[0]
    assert not re.search(r"@\w", prose) and not re.search(r"https?://", prose)
    assert not ESCAPE.search(text) and "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("# t", r"\# t"),
        ("0.75 s", "0.75 s"),
        ("1. x", r"1\. x"),
        ("<b>&", "&lt;b>&amp;"),
        ("two\nlines", "two lines"),
        ("see #12", "see #\u206012"),
        ("- x", r"\- x"),
    ],
)
def test_markdown_escapes(text, expected):
    assert escape(text) == expected


def test_code_spans_and_blocks_cannot_be_closed():
    assert code("a`b``c") == "```a`b``c```"
    assert code("`") == "`` ` ``"
    assert block("x\n````\ny").startswith("`````\n")


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_terminal_passes_no_escape_sequence_of_others(report, name, color):
    found = report(name)
    text = draw(found, color=color, width=100)
    assert text.endswith("\n")
    if not color:
        assert not ESCAPE.search(text)
    assert "\x1b[31mred" not in text and "\u202e" not in text
    assert all(len(line) <= 100 for line in text.splitlines()) or color


def test_terminal_says_what_won_and_what_it_cost(report):
    text = draw(report("accepted"), color=False, width=140)
    assert "1.50x [1.46x, 1.54x]" in text
    assert "2 of 7 trials failed and cost 80.0 s of device time (29 % of all)." in text
    assert "git infrarsi apply 20260101-000000-abcd" in text
    assert "baseline 36.4 %, now 54.6 % [53.1 %, 56.1 %]" in text


def test_an_option_is_claimed_measured_and_believed_and_memory_has_a_price(report):
    text = draw(report("accepted"), color=False, width=160)
    assert "Claims of catalogue are taken at 50% of what they say of time, 100% of memory." in text
    (effect,) = [row for row in text.splitlines() if "micro_batch=16 x 2" in row and "±" in row]
    assert "0.90" in effect and "0.75 ± 0.06" in effect and "0.74" in effect
    (untried,) = [row for row in text.splitlines() if "compile=on" in row]
    assert "nothing" in untried and "not tried enough" in untried
    (price,) = [row for row in text.splitlines() if "checkpointing=on" in row]
    assert "512 MiB" in price and "+12.0 ms" in price and "24.0 ms" in price


@pytest.mark.parametrize("name", ["rejected", "undecided", "interrupted"])
def test_apply_is_offered_for_a_win_only(report, name):
    """R-B6."""
    found = report(name)
    for text in (draw(found, color=False), render_markdown(found), render_html(found)):
        assert "git infrarsi apply" not in text
        assert "What was accepted" not in text


@pytest.mark.parametrize("name", RUNS)
def test_json_is_one_envelope(report, name):
    value = json.loads(render_json(report(name)))
    assert (value["schema"], value["command"], value["ok"], value["error"]) == (1, "report", True, None)
    assert value["result"]["cost"]["failed_device_seconds"] >= 0


def test_json_has_no_infinity(tmp_path):
    book = ledgers.ledger(tmp_path)
    ledgers.searched(book)
    ledgers.say(book, "final", 1, ledgers.verdict("inconclusive", speedup=1.0, low=0.0, high=1e308 * 0.9))
    value = json.loads(render_json(from_ledger(list(book.replay()))), parse_constant=pytest.fail)
    assert value["result"]["speedup"] is None


@pytest.mark.parametrize("reader", [render_html, render_markdown, render_json, lambda r: draw(r, color=False)])
def test_an_empty_run_can_be_drawn(reader):
    assert "Nothing was recorded" in reader(from_ledger([]))


def test_a_diff_line_cannot_pass_for_a_header():
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n--- a/y.py\n+++ b/y.py\n"
    assert [(f.path, f.added, f.removed) for f in files_of(diff)] == [("x.py", 1, 1)]


def test_diff_paths_are_unquoted_and_deletions_keep_their_name():
    diff = '--- "a/\\303\\251.py"\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n'
    assert [(f.path, f.added, f.removed) for f in files_of(diff)] == [("é.py", 0, 1)]


def test_clean_shows_control_characters():
    assert clean("a\x1b[2Jb\x00\u202ec\nd") == "a\\x1b[2Jb\\x00\\u202ec\nd"
    assert clean("abcdef", 4) == "abc…"


def test_a_diff_keeps_its_lines_in_a_narrow_terminal():
    """A patch that the reader broke to fit the screen cannot be copied."""
    diff = '+            print("' + "x" * 150 + '", flush=True)'
    page = pages.Page("Done.", "", (pages.Section("Diff", code=diff, key="diff"),), "git infrarsi apply " + "y" * 120)
    text = terminal.render(page, color=False, width=60)
    assert diff in text.splitlines() and "next: git infrarsi apply " + "y" * 120 in text.splitlines()
