"""The measurement beside the prediction."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import gap
from harness.analysis.phases import Probed
from harness.analysis.rules.levels import Concluded, above_peak
from harness.data.judgement import Cause, Verdict
from harness.data.levels import LevelSummary
from harness.data.prediction import Achieved, Gap, Prediction
from harness.data.summary import Curve, Phases, PrefillPhase
from harness.data.views import Estimate, ServerView, Spread, Value
from harness.predict import catalog
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.predict.roofline import predict
from harness.spec.work import MeanLengths
from tests.builders import summaries

PREDICTION = summaries.prediction((1, 2, 4), {})


def at(concurrency: int, rate: float | None, *, invalid: bool = False) -> summaries.LevelSummary:
    verdicts = [Verdict("client_limited", "invalid", "")] if invalid else []
    return msgspec.structs.replace(summaries.level(concurrency), output_tokens_per_s=Estimate(rate), verdicts=verdicts)


def ratios(*levels: summaries.LevelSummary) -> list[float | None]:
    return [level.measured_over_predicted for level in gap.with_ratios(PREDICTION, levels).levels]


def test_each_level_stands_over_its_own_prediction_and_repeats_are_averaged() -> None:
    mid = [level.output_tokens_per_s.mid for level in PREDICTION.levels]
    got = ratios(at(1, mid[0]), at(4, 0.5 * mid[2]), at(4, 0.7 * mid[2]))
    assert got == [pytest.approx(1.0), None, pytest.approx(0.6)]


def test_an_invalid_level_is_beside_nothing() -> None:
    assert ratios(at(1, 5.0, invalid=True), at(2, None)) == [None, None, None]


# ---- where the difference comes from ----------------------------------------------------------------------

CARDS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-80-sxm")
LEVELS = [1, 2, 4, 8, 16, 32, 64]


def predicted(
    *, name: str = "llama-3.1-8b", card: str = "h100-sxm", P: float = 1000, G: float = 200, **figures: Any
) -> Prediction:
    served = model(catalog.model_config(name), name)
    there = deployment(catalog.gpu(card), **{"max_num_seqs": 16, **figures})
    return predict(served, there, MeanLengths(P, G), LEVELS)


def as_predicted(prediction: Prediction) -> list[LevelSummary]:
    """Levels that were measured to be what the prediction says."""
    return [
        summaries.level(
            each.concurrency,
            in_flight=float(each.concurrency),
            output_tokens_per_s=Estimate(each.output_tokens_per_s.mid),
            itl_s=spread(each.itl_s or 0.0),
            ttft_s=spread(each.ttft_s),
            server=None,
        )
        for each in prediction.levels
    ]


def spread(mean: float) -> Spread:
    return Spread(mean, None, None, None, None, None, 50)


def plateau(rate: float, hinge: float, ends: tuple[float, float] | None = None) -> Curve:
    curve = summaries.full().curve
    assert curve is not None
    return msgspec.structs.replace(
        curve, plateau_tokens_per_s=Value(rate), hinge_concurrency=Value(hinge, ends or (hinge * 0.97, hinge * 1.03))
    )


def changed(levels: list[LevelSummary], at: int, **figures: Any) -> list[LevelSummary]:
    return [msgspec.structs.replace(s, **figures) if s.concurrency == at else s for s in levels]


def faster(levels: list[LevelSummary], at: int, factor: float, **figures: Any) -> list[LevelSummary]:
    rate = next(s.output_tokens_per_s.mean for s in levels if s.concurrency == at)
    return changed(levels, at, output_tokens_per_s=Estimate((rate or 0.0) * factor), **figures)


def attributed(
    prediction: Prediction, levels: list[LevelSummary], curve: Curve | None = None, phases: Phases | None = None
) -> Gap:
    found = gap.attribute(prediction, levels, curve, phases=phases)
    assert found is not None
    assert math.prod(found.factors.values()) == pytest.approx(found.ratio)
    assert found.largest in set(Cause)
    return found


@given(
    card=st.sampled_from(CARDS),
    name=st.sampled_from(["llama-3.1-8b", "qwen2.5-0.5b", "qwen3-30b-a3b", "gemma-3-27b"]),
    P=st.integers(1, 4000),
    G=st.integers(1, 1000),
    seqs=st.integers(1, 200),
    dp=st.integers(1, 3),
)
def test_where_all_is_as_predicted_every_factor_is_1(card: str, name: str, P: int, G: int, seqs: int, dp: int) -> None:
    prediction = predicted(card=card, name=name, P=P, G=G, max_num_seqs=seqs, dp=dp)
    found = attributed(prediction, as_predicted(prediction))
    assert found.ratio == pytest.approx(1.0)
    assert all(factor == pytest.approx(1.0, rel=1e-6) for factor in found.factors.values())
    assert found.largest == Cause.NONE


def test_what_one_request_alone_does_not_show_is_software_s_or_the_host_s() -> None:
    """The hinge and one request alone are as predicted, the plateau is not."""
    prediction = predicted()
    found = attributed(prediction, as_predicted(prediction), plateau(0.6 * prediction.plateau_tokens_per_s.mid, 16.0))
    assert found.largest == Cause.SOFTWARE
    assert found.factors[Cause.SOFTWARE] == pytest.approx(0.6)
    assert found.at is None
    assert found.hinge_over_cap == pytest.approx(1.0)


def test_a_curve_agrees_only_where_one_request_alone_does_too() -> None:
    """A token of one request alone takes three times as long, yet the plateau is as predicted: nothing agrees."""
    prediction = predicted(P=64)
    itl = prediction.levels[0].itl_s
    assert itl is not None
    levels = changed(as_predicted(prediction), 1, itl_s=spread(3 * itl), ttft_s=spread(3 * itl))
    found = attributed(prediction, levels, plateau(prediction.plateau_tokens_per_s.mid, 16.0))
    assert (found.largest, found.ratio) == (Cause.BANDWIDTH, pytest.approx(1.0))
    assert found.sentence.startswith(
        "Measured is 0.33 of predicted for one request alone (by ITL), though 1.00 at the plateau; "
        "the largest part is bandwidth, a factor "
    )
    assert "agrees" in attributed(prediction, as_predicted(prediction)).sentence


def test_a_level_that_is_off_is_named_though_the_plateau_agrees() -> None:
    """Half of what was predicted at C = 8, which neither one request alone nor the batch limit explains."""
    prediction = predicted()
    levels = faster(as_predicted(prediction), 8, 0.5)
    found = attributed(prediction, levels, plateau(prediction.plateau_tokens_per_s.mid, 16.0))
    assert (found.largest, found.ratio) == (Cause.SOFTWARE, pytest.approx(1.0))
    assert found.sentence.startswith("Measured is 0.50 of predicted at C = 8, though 1.00 at the plateau; ")


def test_more_than_the_hardware_can_do_is_a_wrong_figure_of_the_hardware() -> None:
    said = "MFU 1.06: no hardware reaches more than 1, so its FLOP/s are given too low, or it is another card"
    assert gap.above_peak(Achieved(0.16, 0.66), Achieved(1.06, 0.6)) == said
    both = gap.above_peak(Value(1.2), Value(2.0))
    assert both.startswith("MBU 1.20 and MFU 2.00: no hardware reaches more than 1, so its bytes/s and FLOP/s are ")
    assert gap.above_peak(None, Value(1.0)) == gap.above_peak(Value(None), None) == ""
    nothing = Value(None)
    probe = PrefillPhase(
        tokens_per_s=nothing, seconds_per_token=nothing, ttft_base_s=nothing, mfu=Value(1.06), lengths=[]
    )
    (verdict,) = above_peak.findings(Concluded(probed=Probed(Phases(prefill=probe), None)))
    assert (verdict.level, verdict.message) == ("doubt", said)
    prediction = predicted()
    found = attributed(prediction, as_predicted(prediction), phases=Phases(prefill=probe))
    assert found.sentence.endswith(f" {said}.")
    assert above_peak.findings(Concluded(gap=attributed(prediction, as_predicted(prediction)))) == []


@pytest.mark.parametrize(("share", "told"), [(0.9, True), (0.3, False)])
def test_a_ttft_that_is_mostly_what_was_assumed_says_nothing_of_the_prompt(share: float, told: bool) -> None:
    """One request's TTFT less the predicted prefill is what is assumed; a server that waits less is no faster card."""
    prediction = predicted(P=2048)
    alone = prediction.levels[0]
    levels = changed(as_predicted(prediction), 1, ttft_s=spread(share * alone.ttft_s))
    assert (attributed(prediction, levels).ratio_prefill is not None) == told


def test_without_a_level_at_1_the_sentence_says_what_cannot_be_told() -> None:
    prediction = predicted()
    levels = faster([s for s in as_predicted(prediction) if s.concurrency != 1], 64, 0.5)
    found = attributed(prediction, levels)
    assert (found.largest, found.ratio_single, found.ratio_prefill) == (Cause.SOFTWARE, None, None)
    assert "without a valid level at C = 1" in found.sentence


def test_faster_than_predicted_has_its_cause_as_well() -> None:
    """Where the weights weigh half: half the time of a token, and more than the 1.15 that still agree.

    TTFT does not tell how long so short a prompt takes, so its 2.3 % of a step stay: it is 1 / (0.977 / 2 + 0.023).
    """
    prediction = predicted(P=64)
    alone = prediction.levels[0]
    assert alone.itl_s is not None
    later = alone.ttft_s - alone.itl_s
    levels = changed(
        faster(as_predicted(prediction), 64, 1.7), 1,
        itl_s=spread(alone.itl_s / 2), ttft_s=spread(later / 2 + alone.itl_s / 2),
    )  # fmt: skip
    found = attributed(prediction, levels)
    assert found.largest == Cause.BANDWIDTH
    assert found.factors[Cause.BANDWIDTH] == pytest.approx(1.955, rel=0.005)


def test_two_causes_share_the_gap_and_the_larger_is_named() -> None:
    """A token twice as slow alone, half the batch: a quarter, but for what comes with a batch."""
    prediction = predicted(P=64, G=1000)
    alone = prediction.levels[0]
    assert alone.itl_s is not None
    levels = changed(
        as_predicted(prediction), 1, itl_s=spread(2 * alone.itl_s), ttft_s=spread(alone.ttft_s + alone.itl_s)
    )
    found = attributed(prediction, levels, plateau(0.27 * prediction.plateau_tokens_per_s.mid, 8.0))
    assert found.factors[Cause.BANDWIDTH] == pytest.approx(0.5, rel=0.03)
    assert found.factors[Cause.SEQUENCES] == pytest.approx(0.52, rel=0.03)
    assert found.factors[Cause.SOFTWARE] == pytest.approx(1.0, abs=0.05)
    assert found.largest == Cause.BANDWIDTH


def test_a_batch_beyond_the_predicted_cap_shows_that_cap_to_be_another() -> None:
    prediction = predicted(max_num_seqs=16, P=64)
    more = predicted(max_num_seqs=48, P=64)
    found = attributed(prediction, as_predicted(more), plateau(more.plateau_tokens_per_s.mid, 48.0))
    assert found.largest == Cause.SEQUENCES
    assert found.factors[Cause.SEQUENCES] == pytest.approx(found.ratio, rel=0.02)
    assert found.hinge_over_cap == pytest.approx(3.0)
    assert "the batch stops at 48 requests, not at 16" in found.sentence


@pytest.mark.parametrize(
    ("view", "cause"),
    [
        (ServerView(running=8, waiting=24, kv_usage=0.3, preemptions=0), Cause.SEQUENCES),
        (ServerView(running=8, waiting=24, kv_usage=0.9, preemptions=0), Cause.KV_MEMORY),  # a ninth would take 1.01
        (ServerView(running=8, waiting=24, kv_usage=0.8, preemptions=0), Cause.SEQUENCES),
        (ServerView(running=8, waiting=24, kv_usage=0.6, preemptions=5), Cause.KV_MEMORY),
        (ServerView(running=8, waiting=24), Cause.SEQUENCES),  # nothing published: the cap that was to bind
    ],
)
def test_the_server_s_counters_tell_kv_memory_from_max_num_seqs(view: ServerView, cause: str) -> None:
    prediction = predicted(max_num_seqs=32, P=64)
    levels = [
        msgspec.structs.replace(s, server=view) if (s.concurrency or 0) > 8 else s for s in as_predicted(prediction)
    ]
    for curve in (plateau(0.3 * prediction.plateau_tokens_per_s.mid, 8.0), None):
        found = attributed(prediction, faster(levels, 64, 0.3), curve)
        assert found.largest == cause
        assert found.hinge_over_cap == pytest.approx(0.25)


def test_kv_that_the_server_says_it_holds_is_held_against_what_the_card_has_room_for() -> None:
    """The prediction knows the published quarter and agrees; the rest of the card is still not used."""
    whole = predicted(max_num_seqs=256, kv_tokens=160_000)
    less = predicted(max_num_seqs=256, kv_tokens=40_000)
    levels, curve = as_predicted(less), plateau(less.plateau_tokens_per_s.mid, less.hinge_concurrency or 0.0)
    assumed = msgspec.structs.replace(less.assumptions, kv_tokens_by_memory=None)
    assert attributed(msgspec.structs.replace(less, assumptions=assumed), levels, curve).largest == Cause.NONE
    assumed = msgspec.structs.replace(less.assumptions, kv_tokens_by_memory=160_000.0)
    published = msgspec.structs.replace(less, assumptions=assumed)
    found = attributed(published, levels, curve)
    assert found.ratio == pytest.approx(less.plateau_tokens_per_s.mid / whole.plateau_tokens_per_s.mid, rel=0.02)
    assert found.hinge_over_cap == pytest.approx(0.25, rel=0.05)
    assert set(found.factors) > {Cause.KV_MEMORY}


LIMITED = [Verdict("client_limited", "invalid", "")]


def test_a_level_that_the_client_limited_counts_only_where_it_ends_the_curve() -> None:
    prediction = predicted()
    levels = faster(as_predicted(prediction), 64, 0.3, verdicts=LIMITED)
    found = attributed(prediction, levels)
    assert (found.largest, found.at) == (Cause.CLIENT, 64.0)
    assert found.factors[Cause.CLIENT] == pytest.approx(0.3)
    reached = attributed(prediction, levels, plateau(prediction.plateau_tokens_per_s.mid, 16.0))
    assert reached.largest == Cause.NONE
    assert Cause.CLIENT not in reached.factors
    below = attributed(prediction, faster(as_predicted(prediction), 8, 0.3, verdicts=LIMITED))
    assert below.largest == Cause.NONE


def test_a_server_faster_than_predicted_is_no_client_s_doing_but_a_wrong_figure_s() -> None:
    prediction = predicted()
    levels = faster(as_predicted(prediction), 64, 3.0, verdicts=LIMITED)
    found = attributed(prediction, levels)
    assert (found.largest, found.factors[Cause.SOFTWARE]) == (Cause.SOFTWARE, pytest.approx(3.0))
    assert Cause.CLIENT not in found.factors
    assert "faster than the figures given allow" in found.sentence


def test_a_client_that_was_limited_at_1_leaves_no_times_to_go_by_but_too_few_in_flight_do() -> None:
    prediction = predicted()
    slow = {"itl_s": spread(1.0)}
    levels = changed(faster(as_predicted(prediction), 64, 0.5), 1, verdicts=LIMITED, **slow)
    assert attributed(prediction, levels).ratio_single is None
    few = [Verdict("in_flight_low", "invalid", "")]
    assert attributed(prediction, changed(levels, 1, verdicts=few, **slow)).ratio_single is not None


def test_several_small_causes_leave_it_to_the_one_that_the_rest_has() -> None:
    prediction = predicted()
    levels = faster(faster(as_predicted(prediction), 64, 0.85, verdicts=LIMITED), 8, 0.7)
    found = attributed(prediction, levels)
    assert found.largest == Cause.CLIENT
    assert found.largest in found.factors


def test_a_level_of_errors_is_no_level() -> None:
    prediction = predicted()
    levels = faster(
        as_predicted(prediction), 64, 0.1, verdicts=[Verdict("errors_above_1_percent", "invalid", ""), *LIMITED]
    )
    assert attributed(prediction, levels).at == 32.0


def test_a_probed_prefill_beats_what_one_ttft_says() -> None:
    prediction = predicted()
    nothing = Value(None)
    probe = PrefillPhase(
        tokens_per_s=nothing, seconds_per_token=nothing, ttft_base_s=nothing, mfu=Value(0.225), lengths=[]
    )
    found = attributed(prediction, as_predicted(prediction), phases=Phases(prefill=probe))
    assert found.ratio_prefill == pytest.approx(2.0)
    assert found.mfu is not None
    assert (found.mfu.value, found.mfu.predicted) == (0.225, 0.45)


def test_nothing_to_compare_is_no_gap() -> None:
    prediction = predicted()
    assert gap.attribute(prediction, [], None) is None
    assert (
        gap.attribute(prediction, changed(as_predicted(prediction)[:1], 1, output_tokens_per_s=Estimate(None)), None)
        is None
    )
    assert gap.attribute(predicted(G=0), as_predicted(prediction), None) is None


@pytest.mark.parametrize(
    "assumed", [{"dp": 0.0}, {"dp": -1.0}, {"kv_tokens_by_memory": 1.0, "kv_tokens": 0.0}, {"prefill_beside_s": 1e9}]
)
def test_a_prediction_from_a_folder_that_holds_no_pace_is_no_gap(assumed: dict[str, float]) -> None:
    good = predicted()
    crafted = msgspec.structs.replace(good, assumptions=msgspec.structs.replace(good.assumptions, **assumed))
    assert gap.attribute(crafted, as_predicted(good), None) is None
