"""What a phase probe says, by hand, and against the formulas that the simulated endpoint obeys."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import phases
from harness.analysis.rules import findings
from harness.analysis.rules.levels import Concluded
from harness.analysis.table import Floats
from harness.data.judgement import Verdict
from harness.data.levels import LevelSummary
from harness.data.manifest import Roof
from harness.data.summary import Curve, DecodePhase, PrefillPhase
from harness.data.views import Estimate, Spread, Value
from harness.predict import catalog, deployment, roofline
from harness.predict.model import Model, kv_bytes_per_token, model, parameters, weights
from harness.predict.step import decode_time, prefill_compute, prefill_time, step_cost
from tests.builders import summaries

LENGTHS = (64, 116, 210, 380, 512, 689, 1248, 2261, 4096)
PROMPT = 512.0


def spread(mean: float, n: int = 50) -> Spread:
    return Spread(mean, mean, None, None, None, mean, n)


def probed(P: float, ttft: float, *, error: float = 0.005, own: bool = True, **changes: Any) -> LevelSummary:
    """A level of one-token answers at one request in flight; `error` is the relative one of its rate."""
    rate = 1 / ttft
    of_it: dict[str, Any] = {
        "input_tokens_asked": int(P) if own else None, "input_tokens_mean": float(P), "output_tokens_mean": 1.0,
        "ttft_s": spread(ttft), "itl_s": summaries.EMPTY, "decode_tokens_per_s": 0.0,
        "output_tokens_per_s": Estimate(rate, (0.99 * rate, 1.01 * rate)), "output_tokens_per_s_se": error * rate,
    }  # fmt: skip
    return msgspec.structs.replace(summaries.level(1), **of_it | changes)


def ramp(C: int, requests_per_s: float, **changes: Any) -> LevelSummary:
    """A level of a prefill probe's ramp: as many output tokens a second as requests."""
    rate = requests_per_s
    of_it: dict[str, Any] = {
        "concurrency": C, "in_flight": float(C), "output_tokens_per_s": Estimate(rate, (0.98 * rate, 1.02 * rate)),
    }  # fmt: skip
    return probed(PROMPT, C / rate, own=False, **of_it | changes)


def plateau(tokens_per_s: float, hinge: float, *, reached: bool = True) -> Curve:
    return Curve(
        family="capped_hyperbola",
        single_stream_tokens_per_s=Value(None),
        hinge_concurrency=Value(hinge),
        plateau_tokens_per_s=Value(tokens_per_s, (0.99 * tokens_per_s, 1.01 * tokens_per_s)),
        plateau_reached=reached,
        dip=None,
        weights={},
        parameters={},
        verdicts=[],
    )


def prefill(
    levels: list[LevelSummary], curve: Curve | None = None, *, prompt: float = PROMPT, roof: Roof | None = None
) -> tuple[PrefillPhase, list[Verdict]]:
    probed = phases.of_probe("prefill", levels, curve, input_tokens=prompt, roof=roof)
    assert probed is not None
    assert probed.phases.prefill is not None
    assert probed.phases.decode is None
    return probed.phases.prefill, findings(Concluded(probed=probed))


def decode(
    levels: list[LevelSummary], curve: Curve | None = None, *, roof: Roof | None = None
) -> tuple[DecodePhase, list[Verdict]]:
    probed = phases.of_probe("decode", levels, curve, input_tokens=32.0, roof=roof)
    assert probed is not None
    assert probed.phases.decode is not None
    assert probed.phases.prefill is None
    return probed.phases.decode, findings(Concluded(probed=probed))


def codes(verdicts: list[Verdict]) -> list[str]:
    return [v.code for v in verdicts]


def array(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


# ---- the slope -------------------------------------------------------------------------------------------


def test_a_line_by_hand_with_its_interval_by_t() -> None:
    """Four points 0.1 off 1 + 2 P, bent down so that no q >= 0 helps: χ² = 4, two degrees of freedom.

    Σ(P - 2.5)² = 5, so the slope's error is 0.1 √(4/2) / √5, and t is 4.3027.
    """
    P = array(1, 2, 3, 4)
    line = phases.fit(P, 1 + 2 * P - array(0.1, -0.1, -0.1, 0.1), array(0.1, 0.1, 0.1, 0.1))
    assert line is not None
    assert line.coefficients == pytest.approx((1.0, 2.0, 0.0))
    slope = line.slope(3.0)
    assert slope.value == pytest.approx(2.0)
    half = 4.30265 * 0.1 * 2**0.5 / 5**0.5
    assert slope.ci95 == pytest.approx((2 - half, 2 + half), rel=1e-5)


def test_errors_count_by_their_weight() -> None:
    """Two levels of one length, 1 ± 0.1 and 2 ± 0.2, mean (1 · 100 + 2 · 25)/125 = 1.2; the other length is 5.2."""
    line = phases.fit(array(10, 10, 20), array(1, 2, 5.2), array(0.1, 0.2, 0.1))
    assert line is not None
    assert line.slope(10.0).value == pytest.approx(0.4)
    assert line.base().value == pytest.approx(-2.8)


def test_two_lengths_give_a_slope_without_an_interval_and_one_gives_none() -> None:
    line = phases.fit(array(100, 300), array(0.02, 0.03), array(1e-4, 1e-4))
    assert line is not None
    assert line.slope(300.0).value == pytest.approx(5e-5)
    assert line.slope(300.0).ci95 is None
    assert phases.fit(array(100, 100), array(0.02, 0.03), array(1e-4, 1e-4)) is None
    assert phases.fit(array(), array(), array()) is None


def test_attention_bends_ttft_and_the_slope_is_that_of_the_asked_length() -> None:
    P = array(*LENGTHS)
    rise = phases.fit(P, 0.01 + 3e-5 * P + 2e-9 * P**2, 1e-4 * np.ones(len(P)))
    assert rise is not None
    assert rise.slope(512.0).value == pytest.approx(3e-5 + 2 * 2e-9 * 512, rel=1e-6)
    assert rise.base().value == pytest.approx(0.01, rel=1e-6)


def test_prompts_too_short_to_keep_the_arithmetic_busy_are_flat_and_no_part_of_the_slope() -> None:
    P = array(*LENGTHS)
    t = np.maximum(0.0141, 0.006 + 3e-5 * P)  # flat up to 270 tokens
    rise = phases.fit(P, t, 0.005 * t)
    assert rise is not None
    assert rise.begins == 380
    assert rise.slope(512.0).value == pytest.approx(3e-5, rel=1e-6)
    assert rise.base().value == pytest.approx(0.006, rel=1e-6)


@given(st.floats(1e-4, 1.0), st.floats(1e-7, 1e-3), st.floats(0.0, 1e-8), st.integers(2, 9), st.floats(1e-3, 0.05))
def test_what_has_no_noise_is_found_whatever_its_size(c: float, s: float, q: float, n: int, error: float) -> None:
    P = array(*LENGTHS[:n])
    q = q if n > 3 else 0.0  # three points do not tell a bend
    t = c + s * P + q * P**2
    rise = phases.fit(P, t, error * t)
    assert rise is not None
    assert rise.slope(PROMPT).value == pytest.approx(s + 2 * q * PROMPT, rel=1e-4)


def test_the_interval_of_the_slope_covers_it_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    P = array(*LENGTHS)
    t = np.maximum(0.0141, 0.006 + 3e-5 * P + 5e-10 * P**2)
    truth, hits, runs = 3e-5 + 2 * 5e-10 * 512, 0, 300
    for _ in range(runs):
        rise = phases.fit(P, t * (1 + 0.01 * generator.standard_normal(len(P))), 0.01 * t)
        assert rise is not None
        ends = rise.slope(512.0).ci95
        assert ends is not None
        hits += ends[0] is not None and ends[1] is not None and ends[0] <= truth <= ends[1]
    assert hits >= 0.92 * runs


# ---- prefill ---------------------------------------------------------------------------------------------


def on_gpu(name: str, key: str, **figures: Any) -> tuple[Model, deployment.Deployment]:
    return model(catalog.model_config(name), name), deployment.deployment(catalog.gpu(key), **figures)


@pytest.mark.parametrize(
    ("name", "key", "figures"),
    [
        ("llama-3.1-8b", "h100-sxm", {}),
        ("llama-3.1-8b", "h100-sxm", {"mfu_prefill": 0.6, "mbu": 0.6}),
        ("llama-3.1-8b", "a100-80-sxm", {"speed": 4.0}),
        ("qwen2.5-0.5b", "l40s", {"o_api": 0.004}),
    ],
)
@pytest.mark.parametrize("prompt", [512, 1000])
def test_a_probe_of_the_simulated_endpoint_returns_the_mfu_it_was_given(
    name: str, key: str, figures: dict[str, Any], prompt: int
) -> None:
    made, where = on_gpu(name, key, **figures)
    cost = step_cost(made, where)

    def ttft(P: float) -> float:  # the step that admits the prompt also makes its first token
        return prefill_time(cost, P) + decode_time(cost, 1, P) + cost.api

    levels = [probed(P, ttft(P)) for P in sorted({*LENGTHS, prompt})]
    found, verdicts = prefill(levels, prompt=prompt, roof=roofline.data_sheet_roof(made, where))
    assert found.mfu is not None
    assert found.mfu.value == pytest.approx(where.mfu_prefill, rel=0.02)
    assert "prefill_flat" not in codes(verdicts)


def test_mfu_is_the_flop_of_one_token_more_over_what_the_gpu_could_have_done() -> None:
    made, where = on_gpu("llama-3.1-8b", "h100-sxm")
    slope = 4e-5
    found, _ = prefill([probed(P, 0.01 + slope * P) for P in LENGTHS], roof=roofline.data_sheet_roof(made, where))
    # 2 body + 4 L n_q d P over F times the slope: body 6,979,321,856 matmul parameters, 32 layers of 32 heads of 128
    by_hand = (2 * 6_979_321_856 + 4 * 32 * 32 * 128 * 512) / (989e12 * slope)
    assert parameters(made).body == 6_979_321_856
    assert found.mfu is not None
    assert found.mfu.value == pytest.approx(by_hand, rel=1e-3)
    assert found.seconds_per_token.value == pytest.approx(slope, rel=1e-6)
    assert found.ttft_base_s.value == pytest.approx(0.01, rel=1e-6)
    assert found.lengths[0] == pytest.approx((64.0, 0.01256))
    low, high = found.seconds_per_token.ci95 or (None, None)
    assert low is not None
    assert high is not None
    assert low < slope < high
    assert found.mfu.ci95 == pytest.approx((by_hand * slope / high, by_hand * slope / low), rel=1e-3)


def test_without_model_or_hardware_there_is_no_mfu() -> None:
    found, _ = prefill([probed(P, 0.01 + 4e-5 * P) for P in LENGTHS])
    assert found.mfu is None
    assert found.seconds_per_token.value == pytest.approx(4e-5)


def test_capacity_is_the_plateau_in_prompt_tokens() -> None:
    levels = [probed(P, 0.01 + 4e-5 * P) for P in LENGTHS] + [ramp(1, 33.0), ramp(8, 48.0), ramp(16, 49.5)]
    found, verdicts = prefill(levels, plateau(49.0, 4.0))
    assert found.tokens_per_s.value == pytest.approx(49.0 * 512)
    assert found.tokens_per_s.ci95 == pytest.approx((48.51 * 512, 49.49 * 512))
    assert verdicts == []


def test_where_no_plateau_was_reached_the_best_level_stands_for_it_and_that_is_said() -> None:
    levels = [probed(64, 0.0001), ramp(1, 33.0), ramp(8, 48.0), ramp(4, 45.0)]
    for curve in (None, plateau(49.0, 4.0, reached=False)):
        found, verdicts = prefill(levels, curve)
        assert found.tokens_per_s.value == pytest.approx(48.0 * 512), "not that of the short prompts before the ramp"
        assert found.tokens_per_s.ci95 == pytest.approx((0.98 * 48 * 512, 1.02 * 48 * 512))
        assert codes(verdicts) == ["phase_plateau_not_reached"]
        assert "C = 8" in verdicts[0].message


def test_prompts_are_counted_as_the_server_counts_them() -> None:
    levels = [probed(P, 0.01 + 4e-5 * (P + 30), input_tokens_mean=P + 30.0) for P in LENGTHS]
    found, _ = prefill([*levels, ramp(8, 50.0, input_tokens_mean=530.0)])
    assert found.seconds_per_token.value == pytest.approx(4e-5)
    assert found.ttft_base_s.value == pytest.approx(0.01)
    assert found.tokens_per_s.value == pytest.approx(50 * 530)


def test_the_ramp_s_own_level_of_one_request_is_a_length_more() -> None:
    found, _ = prefill([probed(64, 0.0125), probed(4096, 0.17), ramp(1, 1 / 0.03)])
    assert [P for P, _ in found.lengths] == [64, 512, 4096]


def test_a_level_with_errors_is_no_part_of_the_slope_but_one_with_few_in_flight_is() -> None:
    def voided(code: str) -> dict[str, Any]:
        return {"verdicts": [Verdict(code, "invalid", "")]}

    levels = [probed(P, 0.01 + 4e-5 * P) for P in LENGTHS]
    levels += [
        probed(3000, 9.0, **voided("errors_above_1_percent")),
        probed(128, 0.01 + 4e-5 * 128, **voided("in_flight_low")),
    ]
    found, _ = prefill(levels)
    assert [P for P, _ in found.lengths] == sorted([*LENGTHS, 128])
    assert found.seconds_per_token.value == pytest.approx(4e-5)


def test_a_slope_asked_in_the_flat_part_is_quoted_where_it_begins_and_that_is_said() -> None:
    levels = [probed(P, max(0.0141, 0.006 + 3e-5 * P)) for P in LENGTHS]
    found, verdicts = prefill([*levels, ramp(4, 45.0)], prompt=100.0)
    assert found.seconds_per_token.value == pytest.approx(3e-5)
    assert codes(verdicts) == ["prefill_flat", "phase_plateau_not_reached"]
    assert "380" in verdicts[0].message


def test_a_probe_that_measured_nothing_says_so() -> None:
    found, verdicts = prefill([])
    assert (found.tokens_per_s, found.seconds_per_token, found.ttft_base_s) == (Value(None), Value(None), Value(None))
    assert (found.mfu, found.lengths) == (None, [])
    assert codes(verdicts) == []
    with_roof, _ = prefill([summaries.hollow().levels[0]], roof=Roof(prompt=1.0, attend=0.0, weights=1.0, kv=0))
    assert with_roof.mfu is None


def test_a_ttft_that_does_not_rise_has_no_mfu() -> None:
    found, _ = prefill(
        [probed(P, 0.05 - 1e-6 * P) for P in LENGTHS], roof=Roof(prompt=1e-5, attend=0.0, weights=1.0, kv=0.0)
    )
    assert found.seconds_per_token.value == pytest.approx(-1e-6)
    assert found.mfu is None


# ---- decode ----------------------------------------------------------------------------------------------


def decoding(C: int, itl: float, G: float = 256.0, **changes: Any) -> LevelSummary:
    rate = C / itl
    of_it: dict[str, Any] = {
        "in_flight": float(C), "input_tokens_mean": 32.0, "output_tokens_mean": G, "itl_s": spread(itl),
        "output_tokens_per_s": Estimate(rate, (0.99 * rate, 1.01 * rate)), "output_tokens_per_s_se": 0.005 * rate,
        "decode_tokens_per_s": rate * (G - 1) / G,
    }  # fmt: skip
    return summaries.level(C, **of_it | changes)


def test_decode_is_the_plateau_without_first_tokens_and_the_itl_of_one_request() -> None:
    levels = [decoding(1, 0.008), decoding(8, 0.01), decoding(32, 0.02)]
    found, verdicts = decode(levels, plateau(1600.0, 20.0))
    assert found.tokens_per_s.value == pytest.approx(1600 * 255 / 256)
    assert found.tokens_per_s.ci95 == pytest.approx((1584 * 255 / 256, 1616 * 255 / 256))
    assert found.itl_s == pytest.approx(0.008)
    assert (found.mbu, verdicts) == (None, [])


def test_decode_without_a_plateau_is_its_best_level() -> None:
    found, verdicts = decode([decoding(1, 0.008), decoding(8, 0.01)])
    assert found.tokens_per_s.value == pytest.approx(800 * 255 / 256)
    assert codes(verdicts) == ["phase_plateau_not_reached"]


def test_mbu_is_the_bytes_of_one_step_over_what_the_memory_could_have_read() -> None:
    made, where = on_gpu("llama-3.1-8b", "h100-sxm")
    found, _ = decode([decoding(1, 0.008)], roof=roofline.data_sheet_roof(made, where))
    mbu = found.mbu
    # (2 bytes of 7,504,658,432 matmul parameters + 161 tokens of 131,072 bytes) / (3.35e12 · 8 ms) = 0.5608
    by_hand = (15_009_316_864 + 161 * 131_072) / (3.35e12 * 0.008)
    assert (weights(made).read(1), kv_bytes_per_token(made)) == (15_009_316_864, 131_072)
    assert mbu is not None
    assert mbu.value == pytest.approx(by_hand)
    assert mbu.ci95 == pytest.approx((by_hand / 1.0098, by_hand / 0.9902), rel=1e-4)


def test_a_step_of_one_request_reads_the_experts_of_one_token_and_no_more_than_a_window() -> None:
    # gpt-oss-20b: 4 of 32 experts a token; 12 layers look back 128 tokens, 12 all the way; 2·8·64 bf16 numbers of KV
    made, where = on_gpu("gpt-oss-20b", "h100-sxm")
    step = roofline.data_sheet_roof(made, where).step(4096)
    read = weights(made).read(1) + 12 * 2048 * (4096 + 1) + 12 * 2048 * (128 + 1)
    assert step == pytest.approx(read / 3.35e12)
    assert weights(made).read(1) > 1.5 * weights(made).always
    bare = msgspec.structs.replace(where, mbu=1.0, o_layer=0.0, o_step=0.0, o_req=0.0)
    assert step == pytest.approx(decode_time(step_cost(made, bare), 1, 4096))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "gemma-3-27b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("P", [100, 3000])
def test_one_prompt_token_more_costs_the_slope_of_the_prefill(name: str, P: float) -> None:
    made, where = on_gpu(name, "h200-sxm", mfu_prefill=1.0)
    cost = step_cost(made, where)
    rise = (prefill_compute(cost, P + 1, 0.0) - prefill_compute(cost, P - 1, 0.0)) / 2
    assert roofline.data_sheet_roof(made, where).token(P) == pytest.approx(rise)


def test_overhead_lowers_mbu_below_what_the_gpu_reads_at() -> None:
    made, where = on_gpu("llama-3.1-8b", "h100-sxm", mbu=0.8)
    bare = msgspec.structs.replace(where, o_layer=0.0, o_step=0.0, o_req=0.0)
    reached = []
    for each in (bare, where):
        itl = decode_time(step_cost(made, each), 1, 32 + 128)
        found, _ = decode([decoding(1, itl)], roof=roofline.data_sheet_roof(made, each))
        assert found.mbu is not None
        reached.append(found.mbu.value)
    assert reached == [pytest.approx(0.8, rel=1e-6), pytest.approx(0.8 * 5.6085 / 6.7632, rel=1e-3)]


def test_a_ramp_that_skips_one_request_in_flight_has_no_itl_of_it() -> None:
    found, _ = decode([decoding(8, 0.01)])
    assert found.itl_s is None


def test_a_run_that_is_no_probe_has_no_phases() -> None:
    assert phases.of_probe(None, [decoding(1, 0.008)], None, input_tokens=32.0) is None
