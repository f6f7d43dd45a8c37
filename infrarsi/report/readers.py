"""One reader per verb's result: each turns it into a page. `draw` finds the reader by the result's class name.

The results are defined above this layer, in the commands; the Protocols say what a reader needs of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infrarsi.report import results, terminal
from infrarsi.report.doctor import doctor_page
from infrarsi.report.init import init_page
from infrarsi.report.page import Page
from infrarsi.report.run_page import run_page
from infrarsi.report.selftest import list_page, selftest_page
from infrarsi.report.verify import verify_page

READERS: dict[str, Callable[[Any], Page]] = {
    "InitResult": init_page,
    "DoctorResult": lambda result: doctor_page(result.calibration, result.notes),
    "Calibration": doctor_page,
    "RunResult": results.run_result_page,
    "RunReport": run_page,
    "ApplyResult": results.apply_page,
    "VerifyResult": verify_page,
    "StatusResult": results.status_page,
    "GcResult": results.gc_page,
    "LaunchPlan": results.launch_page,
    "DemoResult": results.demo_page,
    "SelfTestResult": selftest_page,
    "CaseList": list_page,
}


def page_of(result: object) -> Page:
    """Return the page of any verb's result. TypeError where no reader knows it (a new verb needs one)."""
    name = type(result).__name__
    if name not in READERS:
        raise TypeError(f"no reader draws a {name}")
    return READERS[name](result)


def draw(result: object, *, color: bool, width: int | None = None) -> str:
    """Return any verb's result as terminal text that ends in a newline."""
    return terminal.render(page_of(result), color=color, width=width)
