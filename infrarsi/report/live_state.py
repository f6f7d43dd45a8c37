"""What is known of a run in progress: a fold over its events, drawn by `live`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infrarsi.codec import decode
from infrarsi.records import Candidate, Pair, Trial, Verdict
from infrarsi.report.examined import examined_line
from infrarsi.report.model import SpeedUp
from infrarsi.report.replay import speed_up, what_failed
from infrarsi.report.text import clean, describe, dollars, duration, first_line, plural, ratio, size, span

QUIET = {"progress", "trial-started", "candidate", "effects"}


class LiveState:
    """Mutable, fed by `take`. Estimates are widened by the noise floor until a verdict replaces them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.running = False
        self.run = self.goal = self.stage = ""
        self.budget_trials: int | None = None
        self.floor = 0.0
        self.baseline_seconds: float | None = None
        self.trials: list[Trial] = []
        self.labels: dict[int, str] = {}
        self.pairs: dict[tuple[str, int], list[Pair]] = {}
        self.verdicts: list[tuple[str, Verdict]] = []
        self.search_over = False
        self.dollars: float | None = 0.0
        self._began = clock()

    def take(self, kind: str, text: str, body: dict[str, Any]) -> None:
        """Take one event in; kinds that are not known change nothing."""
        match kind:
            case "run-started":
                self._start(body)
            case "run-resumed":
                self.running, self.stage = True, "resumed"
            case "stage":
                self.stage = text
            case "candidate":
                self.labels[body["number"]] = describe(decode(Candidate, body["candidate"]))
            case "trial-started":
                self.stage = f"{body['role']} {self.labels.get(body['number'], body['number'])}"
            case "trial":
                self.trials.append(decode(Trial, body))
            case "search-ended":
                self.search_over, self.stage = True, f"search ended: {first_line(body['reason'])}"
            case "pair":
                self.pairs.setdefault((body["stage"], body["number"]), []).append(decode(Pair, body["pair"]))
            case "verdict":
                self.verdicts.append((body["stage"], decode(Verdict, body["verdict"])))
            case "llm-call":
                price = body.get("dollars")
                self.dollars = None if price is None or self.dollars is None else self.dollars + price
            case "run-ended":
                self.running, self.stage = False, f"done: {first_line(body['reason'])}"

    def _start(self, body: dict[str, Any]) -> None:
        clock = self._clock
        self.__init__(clock)  # type: ignore[misc]
        self.running, self.run, self.goal = True, body["run"], body["goal"]
        self.budget_trials = (body.get("budget") or {}).get("trials")
        self.floor, self.baseline_seconds = body.get("floor") or 0.0, body.get("baseline_step_seconds")

    @property
    def elapsed(self) -> float:
        """Wall seconds since the run began in this process."""
        return self._clock() - self._began

    @property
    def search_trials(self) -> list[Trial]:
        """Finished search trials."""
        return [t for t in self.trials if t.role == "search"]

    def estimate(self, trial: Trial) -> SpeedUp | None:
        """Return a clean trial's estimated speed-up; the interval is the noise floor, which is all one trial knows."""
        if trial.outcome.kind != "ok" or trial.measurement is None or not self.baseline_seconds:
            return None
        value = self.baseline_seconds / trial.measurement.mean_step_seconds
        return SpeedUp(value, value / (1 + self.floor), value * (1 + self.floor))

    def best(self) -> tuple[str, SpeedUp] | None:
        """Return the label and estimate of the fastest clean candidate so far."""
        found = [(t, e) for t in self.search_trials if not t.candidate.is_baseline and (e := self.estimate(t))]
        if not found:
            return None
        trial, value = max(found, key=lambda item: item[1].ratio)
        return describe(trial.candidate), value

    @property
    def verdict(self) -> Verdict | None:
        """The final verdict; before there is one, the best accepted finalist, else the last one judged."""
        final = [v for stage, v in self.verdicts if stage == "final"]
        if final:
            return final[-1]
        accepted = [v for _, v in self.verdicts if v.decision == "accepted"]
        if accepted:
            return max(accepted, key=lambda v: v.low)
        return self.verdicts[-1][1] if self.verdicts else None

    def headline(self) -> str:
        """Return the best so far with its interval, and whether it is verified (R-B6)."""
        if (said := self.verdict) is not None:
            label = describe(said.candidate)
            known = speed_up(said.speedup, said.low, said.high)
            figure = f" {ratio(known.ratio)} {span(known.low, known.high)}" if known else ""
            word = "undecided" if said.decision == "inconclusive" else said.decision
            return f"{word}:{figure} {label}"
        best = self.best()
        if best is None:
            return "best so far: nothing faster than the baseline yet"
        label, value = best
        return f"best so far, not verified: {ratio(value.ratio)} {span(value.low, value.high)} {label}"

    def cost(self) -> str:
        """Return device time, the failed part of it, and money where a model was asked."""
        total = sum(t.device_seconds for t in self.trials)
        failed = sum(t.device_seconds for t in self.trials if t.outcome.kind != "ok")
        money = "" if self.dollars == 0 else f", {dollars(self.dollars)}"
        return f"device time {duration(total)}, of which failed {duration(failed)}{money}"

    def eta(self) -> str:
        """Return when the search will be over at this pace, verification not included; "" where nothing can be said."""
        done = self.search_trials
        if self.search_over or not done or self.budget_trials is None:
            return ""
        left = max(0, self.budget_trials - len(done))
        seconds = left * sum(t.wall_seconds for t in done) / len(done)
        return f"at most {plural(left, 'trial')} left, about {duration(seconds)}, then verification"

    def trial_text(self, trial: Trial) -> str:
        """Return one trial's result in a few words."""
        measured, value = trial.measurement, self.estimate(trial)
        if trial.outcome.kind != "ok" or measured is None:
            return f"{trial.outcome.kind} {first_line(what_failed(trial), 90)}".strip()
        step, peak = duration(measured.mean_step_seconds), size(measured.peak_allocated_bytes)
        about = f", about {ratio(value.ratio)} {span(value.low, value.high)}" if value else ""
        return f"ok {step} per step, {peak}{about}{', stopped early' if measured.stopped_early else ''}"

    def plain_line(self, kind: str, text: str, body: dict[str, Any]) -> str:
        """Return the line for an event that was just taken, "" where it is not worth one."""
        if kind in QUIET:
            return ""
        if kind == "stage":
            return f"... {text}"
        if kind == "warning":
            return f"warning: {text}"
        return self._ledger_line(kind, body)

    def _ledger_line(self, kind: str, body: dict[str, Any]) -> str:
        match kind:
            case "run-started":
                return f"run {self.run}: {first_line(self.goal)}"
            case "run-resumed":
                return f"resumed: {first_line(str(body.get('reason', '')))}"
            case "patch-refused":
                return f"refused {clean(body['patch'])}: {first_line(body['reason'])}"
            case "trial":
                trial = self.trials[-1]
                what: str = trial.role
                if what == "search":
                    what = f"{len(self.search_trials)}/{self.budget_trials or '?'}"
                return f"[{what}] {describe(trial.candidate)}: {self.trial_text(trial)}"
            case "pair":
                pair = self.pairs[(body["stage"], body["number"])][-1]
                if pair.voided:
                    return f"pair void: {first_line(pair.voided)}"
                return f"pair: {duration(pair.baseline_step_seconds)} against {duration(pair.candidate_step_seconds)}"
            case "examination":
                return examined_line(body)
            case "ablation":
                fate = "kept" if body["kept"] else "dropped"
                return f"without {clean(body['removed'])}: {fate}, {first_line(body['reason'])}"
            case "verdict":
                return self.headline()
            case "search-ended" | "run-ended":
                return f"{self.stage}; {self.headline()}; {self.cost()}"
        return ""
