"""The search against simulated trainings: better than chance, deterministic, honest about the end, fast."""

import math
import time
from pathlib import Path

import numpy as np
import optuna
import pytest
from landscape import BASE_BYTES, BASE_SECONDS, GIB, NOISE, Landscape, knob, patch, run, run_random

from infrarsi.records import Candidate, Claim, Setting
from infrarsi.search.interface import WHOLE, Observation, Parts
from infrarsi.search.reasons import because
from infrarsi.search.space import Space
from infrarsi.search.study import OptunaSearch, from_trials_alone


def search_of(space: Space, budget: int | None = None, seed: int = 0, parts: Parts = WHOLE) -> OptunaSearch:
    return OptunaSearch(
        space,
        baseline_step_seconds=BASE_SECONDS,
        baseline_peak_bytes=BASE_BYTES,
        memory_budget=budget,
        noise=NOISE,
        seed=seed,
        parts=parts,
    )


def ok(candidate: Candidate, log_ratio: float, peak: int = BASE_BYTES) -> Observation:
    return Observation(candidate, "ok", BASE_SECONDS * math.exp(log_ratio), peak, 0.015)


def failed(candidate: Candidate, outcome: str) -> Observation:
    return Observation(candidate, outcome, None, None, 0.015)  # type: ignore[arg-type]


def test_beats_random_at_twenty_trials() -> None:
    """R-K1, the part against random: median share of the best known log speed-up over landscapes."""
    found, chance, failures = [], [], 0
    for seed in range(7):
        landscape = Landscape(seed)
        best = landscape.best_known()
        value, seen = run(landscape, landscape.search(seed), 20)
        found.append(value / best)
        chance.append(run_random(landscape, seed, 20) / best)
        failures += sum(o.outcome != "ok" for o in seen)
    assert np.median(found) > np.median(chance) + 0.15
    assert np.median(found) > 0.65
    assert failures / 7 < 10


def test_wrong_claims_cost_little() -> None:
    """R-K2: with every claim the opposite of the truth, the search still beats random."""
    found, chance = [], []
    for seed in range(20, 25):
        landscape = Landscape(seed, wrong=1.0)
        best = landscape.best_known()
        found.append(run(landscape, landscape.search(seed), 20)[0] / best)
        chance.append(run_random(landscape, seed, 20) / best)
    assert np.median(found) > np.median(chance)


def test_never_repeats_and_keeps_constraints_and_starts_with_the_baseline_then_boldly() -> None:
    gain, loss = Claim("catalogue", 0.9, 1.0, 0.6), Claim("catalogue", 1.1, 1.0, 0.6)
    patches = [
        patch("a", (gain,), conflicts=("b",)),
        patch("b", (gain,)),
        patch("c", (gain,), needs=("d",)),
        patch("d", (gain,)),
        patch("e", (loss,)),
    ]
    space = Space([knob("k", 4, True, ((), (gain,), (gain,), (loss,))), knob("m", 3)], patches)
    search = search_of(space)
    seen = []
    rng = np.random.default_rng(0)
    for _ in range(18):
        proposal = search.ask()
        if proposal is None:
            break
        seen.append(proposal.candidate)
        assert not {"a", "b"} <= set(proposal.candidate.patches)
        assert "d" in proposal.candidate.patches or "c" not in proposal.candidate.patches
        search.tell(ok(proposal.candidate, rng.normal(-0.1, 0.1)))
    assert len(set(seen)) == len(seen) > 8
    assert seen[0].is_baseline
    assert {"c", "d"} <= set(seen[1].patches)
    assert {"a", "b"} & set(seen[1].patches)
    assert "e" not in seen[1].patches
    assert seen[1].settings[0].knob == "k"


def test_same_seed_and_observations_give_the_same_candidates_also_when_replayed() -> None:
    landscape = Landscape(3)
    first = landscape.search(11)
    asked = []
    for _ in range(9):
        proposal = first.ask()
        assert proposal is not None
        asked.append(proposal)
        first.tell(landscape.try_it(proposal.candidate))
    observations = first.sampler.read(first.study)[0]
    replayed = landscape.search(11)
    for count, observation in enumerate(observations):
        assert replayed.ask() == asked[count]
        replayed = landscape.search(11)
        for earlier in [*observations[:count], observation]:
            replayed.tell(earlier)
    assert replayed.ask() == first.ask()
    assert replayed.finalists(3) == first.finalists(3)


def test_a_small_space_is_searched_to_its_end() -> None:
    search = search_of(Space([knob("k", 3)], [patch("p")]))
    seen = []
    while (proposal := search.ask()) is not None:
        seen.append(proposal.candidate)
        search.tell(ok(proposal.candidate, -0.01 * len(seen)))
        assert len(seen) <= 6
    assert len(set(seen)) == len(seen) == 6
    assert search.reason == "every combination has been tried"


def test_ends_when_nothing_visible_is_left() -> None:
    rng = np.random.default_rng(1)
    space = Space([knob(f"k{i}", 3) for i in range(5)], [patch(f"p{i}") for i in range(3)])
    search = search_of(space)
    truth = Candidate((Setting("k0", "l1"),))
    count = 0
    while (proposal := search.ask()) is not None:
        count += 1
        assert count < 80
        gain = -0.2 if set(truth.settings) <= set(proposal.candidate.settings) else 0.0
        search.tell(ok(proposal.candidate, gain + rng.normal(0, 0.005)))
    assert "chance of" in search.reason
    assert search.finalists(1)[0].settings[0] == Setting("k0", "l1")


def test_out_of_memory_and_crashes_teach() -> None:
    more = Claim("catalogue", 0.8, 1.5, 0.4)
    space = Space([knob("batch", 3, True, ((), (more,), (more,)))], [patch(f"p{i}") for i in range(6)])
    search = search_of(space, budget=16 * GIB)
    search.tell(ok(Candidate(), 0.0))
    big = Candidate((Setting("batch", "l1"),))
    before = search._beliefs().predict(np.array([space.encode(big)]))
    search.tell(failed(big, "oom"))
    search.tell(failed(Candidate((), ("p0", "p1")), "crash"))
    search.tell(ok(Candidate((), ("p0",)), 0.0))
    search.tell(ok(Candidate((), ("p1",)), 0.0))
    after = search._beliefs()
    rows = np.array([space.encode(Candidate((Setting("batch", level),))) for level in ("l1", "l2")])
    predicted = after.predict(rows)
    assert predicted.memory[0] > before.memory[0]
    assert np.exp(predicted.log_fits).max() < 0.5
    together = np.array([space.encode(Candidate((), ("p0", "p1", "p2")))])
    assert np.exp(after.predict(together).log_runs)[0] < 0.4


def test_fragmentation_is_not_evidence_of_fullness() -> None:
    space = Space([knob("k", 2)], [patch("p")])
    search = search_of(space, budget=16 * GIB)
    search.tell(ok(Candidate(), 0.0))
    candidate = Candidate((), ("p",))
    search.tell(Observation(candidate, "oom", None, 8 * GIB, 0.015))
    assert search._beliefs().full.shape[0] == 0
    assert math.exp(search._beliefs().predict(space.encode(candidate)[None, :]).log_runs[0]) < 0.3


def test_without_a_budget_the_largest_peak_that_fitted_is_the_limit() -> None:
    search = search_of(Space([knob("k", 3)], []))
    search.tell(ok(Candidate(), 0.0))
    assert math.isinf(search._beliefs().limit)
    search.tell(failed(Candidate((Setting("k", "l1"),)), "oom"))
    assert search._beliefs().limit == 0.0


@pytest.mark.parametrize("outcome", ["oom", "crash"])
def test_a_baseline_that_does_not_run_ends_the_search(outcome: str) -> None:
    """R-C2."""
    search = search_of(Space([knob("k", 3)], []), budget=8 * GIB)
    search.tell(failed(Candidate(), outcome))
    search.tell(failed(Candidate(), outcome))
    assert search.ask() is None
    assert "baseline itself" in search.reason


def test_an_empty_space_says_so() -> None:
    search = search_of(Space([], []))
    assert search.ask() is None
    assert "no knob and no patch" in search.reason
    assert search.effects() == ()
    assert search.finalists(2) == ()
    assert search.prices() == ()


def test_everything_out_of_memory_still_gives_candidates_and_no_finalist() -> None:
    search = search_of(Space([knob(f"k{i}", 3) for i in range(4)], []), budget=11 * GIB)
    search.tell(ok(Candidate(), 0.0))
    for _ in range(6):
        proposal = search.ask()
        assert proposal is not None
        search.tell(failed(proposal.candidate, "oom"))
    assert search.finalists(3) == ()


def test_finalists_ran_and_are_ranked_by_gain_less_one_deviation() -> None:
    search = search_of(Space([knob("k", 3)], [patch("p"), patch("q")]))
    good, better, slow = Candidate((), ("p",)), Candidate((), ("p", "q")), Candidate((Setting("k", "l1"),))
    for candidate, gain in ((Candidate(), 0.0), (good, -0.2), (better, -0.3), (slow, 0.2)):
        search.tell(ok(candidate, gain))
    search.tell(failed(Candidate((Setting("k", "l2"),), ("p", "q")), "rejected"))
    assert search.finalists(5) == (better, good)
    assert search.finalists(1) == (better,)


def test_stops_a_hopeless_trial_and_not_a_hopeful_one() -> None:
    search = search_of(Space([knob("k", 4)], [patch("p"), patch("q")]))
    proposal = search.ask()
    assert proposal is not None
    assert proposal.candidate.is_baseline
    assert not search.should_stop_early(10 * BASE_SECONDS)
    search.tell(ok(proposal.candidate, 0.0))
    search.tell(ok(Candidate((), ("p",)), -0.3))
    assert search.ask() is not None
    assert search.should_stop_early(1.2 * BASE_SECONDS)
    assert not search.should_stop_early(0.72 * BASE_SECONDS)
    assert not search.should_stop_early(0.0)


def test_effects_and_prices_are_explained() -> None:
    helps = Claim("catalogue", 0.9, 1.2, 0.6)
    space = Space([knob("k", 2, claims=((), (helps,)))], [patch("saves", (Claim("bank", 1.05, 0.7, 0.6),))])
    search = search_of(space, budget=20 * GIB)
    search.tell(ok(Candidate(), 0.0))
    search.tell(ok(Candidate((Setting("k", "l1"),)), -0.25, 12 * GIB))
    search.tell(ok(Candidate((), ("saves",)), 0.06, 7 * GIB))
    first, second = search.effects()
    assert (first.knob, first.level, first.source) == ("k", "l1", "catalogue")
    assert first.posterior == pytest.approx(-0.25, abs=0.05)
    assert first.surprise < -0.5
    assert first.memory_log_ratio == pytest.approx(math.log(1.2), abs=0.05)
    assert (second.knob, second.level) == ("saves", "")
    cheapest = search.prices()[0]
    assert cheapest.knob in ("saves", "k")
    saver = next(p for p in search.prices() if p.knob == "saves")
    assert saver.gibibytes > 1
    assert saver.milliseconds > 0
    assert saver.milliseconds_per_gib == pytest.approx(saver.milliseconds / saver.gibibytes)


def test_claimed_measured_and_believed_are_told_apart_and_a_liar_is_trusted_less() -> None:
    lies = Claim("liar", 0.6, 1.0, 0.9)
    names = ("a", "b", "c")
    space = Space([], [patch(name, (lies,)) for name in (*names, "untried")])
    search = search_of(space)
    search.tell(ok(Candidate(), 0.0))
    for name in names:
        search.tell(ok(Candidate((), (name,)), 0.10))
    effects = {effect.knob: effect for effect in search.effects()}
    tried, untried = effects["a"], effects["untried"]
    assert tried.claimed == pytest.approx(math.log(0.6))
    assert tried.measured == pytest.approx(0.10, abs=0.03) and tried.measured_sd is not None
    assert tried.measured_sd < 0.05
    assert abs(tried.posterior - 0.10) < 0.05
    assert (untried.measured, untried.measured_sd) == (None, None)
    assert untried.posterior > math.log(0.6) / 2
    assert [(t.source, t.time) for t in search.trust()] == [("liar", 0.0)]


def test_what_trials_alone_say_is_the_posterior_without_the_prior() -> None:
    prior, noise, seen = 0.2, 0.1, 0.3
    precision = 1 / prior**2 + 1 / noise**2
    departure, sd = from_trials_alone(seen / noise**2 / precision, 1 / precision, prior) or (0.0, 0.0)
    assert (departure, sd) == (pytest.approx(seen), pytest.approx(noise))
    assert from_trials_alone(0.0, prior**2, prior) is None
    assert from_trials_alone(0.001, 0.99 * prior**2, prior) is None


def test_the_journal_shows_every_finished_trial_and_starts_anew_with_a_run(tmp_path: Path) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file = tmp_path / "run" / "optuna.journal"
    for _ in range(2):  # the second time: a run that resumes
        search = OptunaSearch(
            Space([knob("k", 3)], [patch("p")]),
            baseline_step_seconds=BASE_SECONDS, baseline_peak_bytes=BASE_BYTES, memory_budget=None, noise=NOISE,
            journal=file,
        )  # fmt: skip
        search.tell(ok(Candidate(), 0.0))
        search.tell(failed(Candidate((), ("p",)), "oom"))
        proposal = search.ask()
        assert proposal is not None
        search.tell(ok(proposal.candidate, -0.1))
    storage = JournalStorage(JournalFileBackend(str(file)))
    shown = optuna.load_study(study_name=None, storage=storage).get_trials()
    assert [t.state.name for t in shown] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert shown[2].user_attrs["why"] == proposal.why
    assert shown[2].user_attrs["outcome"] == "ok"


def test_lost_trials_may_be_tried_again() -> None:
    search = search_of(Space([], [patch("p")]))
    search.tell(ok(Candidate(), 0.0))
    search.tell(failed(Candidate((), ("p",)), "lost"))
    proposal = search.ask()
    assert proposal is not None
    assert proposal.candidate.patches == ("p",)


def test_several_in_flight_differ() -> None:
    landscape = Landscape(4)
    search = landscape.search(0)
    proposals = [search.ask() for _ in range(4)]
    assert len({p.candidate for p in proposals if p is not None}) == 4
    for proposal in proposals:
        assert proposal is not None
        search.tell(landscape.try_it(proposal.candidate))
    assert len(search.sampler.read(search.study)[0]) == 4


def test_the_study_shows_failures_as_what_they_are_and_optuna_can_drive_it() -> None:
    landscape = Landscape(5)
    search = landscape.search(0)
    search.tell(failed(Candidate((), ("p0",)), "oom"))
    search.tell(failed(Candidate((), ("p1",)), "crash"))
    search.tell(ok(Candidate(), 0.0))
    states = [t.state.name for t in search.study.trials]
    assert states == ["PRUNED", "FAIL", "COMPLETE"]
    study = optuna.create_study(sampler=landscape.search(1).sampler)

    def objective(trial: optuna.Trial) -> float:
        names = landscape.search(1).sampler.distributions()
        row = [d.choices.index(trial.suggest_categorical(n, d.choices)) for n, d in names.items()]
        trial.suggest_float("something_else", 0, 1)
        return BASE_SECONDS * math.exp(landscape.log_time(np.array(row)))

    study.optimize(objective, n_trials=4)
    assert len({str({k: v for k, v in t.params.items() if k != "something_else"}) for t in study.trials}) == 4


@pytest.mark.timing
def test_a_suggestion_takes_milliseconds_at_two_hundred_trials() -> None:
    """R-K3."""
    landscape = Landscape(6, knobs=12, patches=14)
    search = landscape.search(0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        row = rng.integers(landscape.space.sizes) * (rng.random(landscape.space.width) < 0.4)
        search.tell(landscape.try_it(landscape.space.decode(row)))
    search.ask()
    before = time.perf_counter()
    search.ask()
    assert time.perf_counter() - before < 0.5


def learnt(parts: Parts) -> tuple[float, float, float, float]:
    """Return what is believed, after the same three trials, of a claim that was wrong, a full one and a crash."""
    claims = Claim("catalogue", 0.7, 1.0, 0.9)
    options = [
        knob("batch", 2, True, ((), (Claim("catalogue", 0.8, 1.1, 0.5),))),
        *(knob(f"k{i}", 2) for i in range(3)),
    ]
    patches = [patch(f"w{i}", (claims,)) for i in range(6)]
    search = search_of(Space(options, patches), budget=12 * GIB, parts=parts)
    search.tell(ok(Candidate(), 0.0))
    for i in range(4):
        search.tell(ok(Candidate((), (f"w{i}",)), 0.1))
    search.tell(failed(Candidate((Setting("batch", "l1"),)), "oom"))
    search.tell(failed(Candidate((), ("w5",)), "crash"))
    space, beliefs = search.space, search._beliefs()
    rows = [
        Candidate((), ("w4",)),
        Candidate((Setting("batch", "l1"),)),
        Candidate((), ("w5",)),
        Candidate((), ("w0", "w1")),
    ]
    predicted = beliefs.predict(np.array([space.encode(row) for row in rows]))
    return (
        float(predicted.time[0]),
        math.exp(predicted.log_fits[1]),
        math.exp(predicted.log_runs[2]),
        float(predicted.time_variance[3]),
    )


def test_each_part_can_be_left_out_and_is_missed() -> None:
    whole = learnt(WHOLE)
    assert whole[0] > learnt(Parts(trust=False))[0] + 0.05  # claims that were wrong four times are believed again
    assert whole[1] < 0.5 < learnt(Parts(censored=False))[1]
    assert whole[2] < 0.7 < learnt(Parts(blame=False))[2]
    assert whole[3] > learnt(Parts(interactions=False))[3]


def test_why_names_what_changes_what_is_expected_and_what_makes_it_fit() -> None:
    fast, saver = Claim("catalogue", 0.7, 1.6, 0.9), Claim("catalogue", 1.05, 0.5, 0.9)
    space = Space([knob("batch", 2, True, ((), (fast,)))], [patch("checkpointing", (saver,))])
    search = search_of(space, budget=12 * GIB)
    search.tell(ok(Candidate(), 0.0))
    both = Candidate((Setting("batch", "l1"),), ("checkpointing",))
    why = because(search._beliefs(), space.encode(both), 0.4, "found so")
    assert why.startswith("found so; batch base -> l1, with checkpointing at the best so far, expected 0.7")
    assert "checkpointing makes it fit (" in why and "batch makes it fit" not in why
    assert why.endswith("a chance of 40% to beat the best so far by more than can be missed")
