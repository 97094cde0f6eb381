"""What two levels of a known server give back of it, what they leave open, and on what the result is judged."""

import math

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.prediction import batch_cap
from harness.predict import calibration, fitting
from harness.predict.calibration import Calibration, Rms, UnseenError, apply, decode, encode
from harness.predict.catalog import Gpu, gpu, model_config
from harness.predict.deployment import deployment
from harness.predict.fitting import CalibrationPoint, line_then_flat
from harness.predict.model import model
from harness.predict.steady import caps, latencies, steady_state
from harness.predict.step import step_cost
from harness.spec.work import MeanLengths

LLAMA = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
QWEN = model(model_config("qwen2.5-0.5b"), "qwen2.5-0.5b")
H100 = deployment(gpu("h100-sxm"))
CHAT = MeanLengths(1000, 200)
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def served(which=LLAMA, there=H100, load=CHAT, levels=LEVELS, **truth):
    """The levels of a server that the closed form describes exactly, with figures known here alone."""
    real = msgspec.structs.replace(there, **truth)
    cost, cap = step_cost(which, real), batch_cap(caps(which, real, load))
    points = [(C, steady_state(cost, load, C, cap)) for C in levels]
    return [
        CalibrationPoint(
            concurrency=C,
            output_tokens_per_s=each.throughput,
            itl_s=each.itl,
            ttft_s=latencies(each, cost, load, "evenly").ttft,
        )
        for C, each in points
    ]


def changed(points, C, **factors):
    """The same points, some figures of one level times a factor."""
    return [
        msgspec.structs.replace(each, **{name: getattr(each, name) * by for name, by in factors.items()})
        if each.concurrency == C
        else each
        for each in points
    ]


@pytest.fixture(scope="module")
def slow_server():
    return served(mbu=0.6, mfu_prefill=0.3, o_layer=40e-6)


@pytest.fixture(scope="module")
def calibrated(slow_server):
    return fitting.fit(LLAMA, H100, CHAT, slow_server, (1, 16), source="results/slow")


# ---- the fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "card", "load"),
    [(LLAMA, "h100-sxm", CHAT), (QWEN, "l4", CHAT), (LLAMA, "a100-80-sxm", MeanLengths(4000, 400))],
)
def test_two_levels_give_back_mbu_mfu_and_overhead(which, card, load):
    there = deployment(gpu(card))
    points = served(which, there, load, mbu=0.6, mfu_prefill=0.3, o_layer=40e-6)
    found = fitting.fit(which, there, load, points, (1, 16))
    assert found.mbu == pytest.approx(0.6, rel=0.02)
    assert found.mfu_prefill == pytest.approx(0.3, rel=0.02)
    assert found.o_layer == pytest.approx(40e-6, rel=0.02)
    assert found.fitted == ("mbu", "mfu_prefill", "o_layer")
    assert found.rms().calibrated == pytest.approx(0, abs=1e-6)


def test_a_figure_that_the_levels_cannot_see_stays_as_it_was_assumed_and_says_why(calibrated):
    # Decoding reads memory for longer than it computes at 1 and at 16 requests: MFU there could be anything.
    assert calibrated.mfu_decode == H100.mfu_decode
    assert calibrated.kept["mfu_decode"] == "the named levels hardly change with it"
    assert set(calibrated.fitted) | set(calibrated.kept) == set(calibration.RANGES)


def test_short_prompts_settle_the_prefill_mfu_for_the_step_reads_the_weights_anyway():
    # 100 tokens: 1.4 TFLOP at 0.45 · 989 TFLOP/s take 3 ms more than a step of 7 ms, W / (BW MBU).
    short = MeanLengths(100, 200)
    levels = served(load=short, mbu=0.6, mfu_prefill=0.4)
    for on in ((1, 64), (1,)):
        assert fitting.fit(LLAMA, H100, short, levels, on).mfu_prefill == pytest.approx(0.4)


def test_large_batches_settle_the_mfu_of_decoding():
    many, short = deployment(gpu("h100-sxm"), max_num_seqs=1024), MeanLengths(100, 200)
    found = fitting.fit(LLAMA, many, short, served(LLAMA, many, short, mfu_decode=0.25, mbu=0.7), (1, 512))
    assert found.mfu_decode == pytest.approx(0.25, rel=0.02)


def test_a_peak_that_is_stated_too_low_shows_as_a_high_mfu_and_not_as_slow_memory():
    # A step of 16 requests reads for 10.5 ms and computes for 16 ms at the true MFU of 1, for 42 ms at the assumed.
    core = deployment(Gpu(key="core", memory_bytes=32e9, bandwidth=130e9, flops={"bf16": 1e12}), max_num_seqs=16)
    short = MeanLengths(128, 64)
    points = served(QWEN, core, short, (1, 2, 4, 8, 16), mbu=0.75, mfu_prefill=1.0, mfu_decode=1.0)
    found = fitting.fit(QWEN, core, short, points, (1, 16))
    assert found.mfu_decode == pytest.approx(1.0, rel=0.02)
    assert found.rms().calibrated < 0.02


def test_a_fit_that_ends_where_reading_takes_as_long_as_computing_still_sees_both():
    # Measured on one processor core (an earlier scripts/live/vllm), whose peak is stated at half of what it reaches.
    config = model_config("qwen2.5-0.5b") | {
        "model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    }  # fmt: skip
    core = Gpu(key="host", memory_bytes=25e9, bandwidth=34e9, flops={"bf16": 1e11})
    there = deployment(core, max_num_seqs=16, kv_tokens=262_144)
    points = [
        CalibrationPoint(concurrency=1, output_tokens_per_s=100.74, itl_s=9.353e-3, ttft_s=46.24e-3),
        CalibrationPoint(concurrency=16, output_tokens_per_s=624.87, itl_s=24.315e-3, ttft_s=99.71e-3),
        CalibrationPoint(concurrency=32, output_tokens_per_s=630.61),
    ]
    found = fitting.fit(model(config, "toy"), there, MeanLengths(128, 64), points, (1, 16))
    assert "mfu_decode" in found.fitted
    assert found.rms().calibrated < 0.1 < found.rms().data_sheet


def test_one_level_cannot_tell_bandwidth_from_overhead(slow_server):
    found = fitting.fit(LLAMA, H100, CHAT, slow_server, (1,))
    # ITL: 15.15363e9 bytes / (3.35e12 · 0.6) = 7.53912 ms, 32 · 40 µs, 126 µs and 4.4 µs: 8.94952 ms in all.
    # At the assumed MBU of 0.8 the bytes take 5.65434 ms: 3.16478 ms are left for 32 layers.
    assert found.mbu == 0.8
    assert found.kept["mbu"] == "the named levels do not tell it from the others"
    assert found.o_layer == pytest.approx(3.16478e-3 / 32, rel=1e-3)


def test_figures_stay_within_their_ranges_and_the_end_of_one_is_noted(slow_server):
    faster = [
        msgspec.structs.replace(each, itl_s=each.itl_s / 4, output_tokens_per_s=each.output_tokens_per_s * 4)
        for each in slow_server
    ]
    found = fitting.fit(LLAMA, H100, CHAT, faster, (1, 16))
    assert found.mbu == 1.0
    assert any(note.startswith("mbu is at its most, 1:") for note in found.notes)
    assert found.o_layer >= 0


def test_a_server_without_any_overhead_a_layer_is_found_to_have_none():
    found = fitting.fit(LLAMA, H100, CHAT, served(mbu=0.9, o_layer=0.0), (1, 64))
    assert found.o_layer == pytest.approx(0.0, abs=2e-6)
    assert found.mbu == pytest.approx(0.9, rel=0.02)


def test_waiting_for_the_running_step_is_not_taken_for_a_slow_prefill(slow_server):
    # Half a step more at 16 in flight, in TTFT and by Little's law in the throughput too.
    point = next(each for each in slow_server if each.concurrency == 16)
    wait = point.itl_s / 2
    lasts = 16 * 200 / point.output_tokens_per_s
    waited = changed(slow_server, 16, ttft_s=1 + wait / point.ttft_s, output_tokens_per_s=lasts / (lasts + wait))
    found = fitting.fit(LLAMA, H100, CHAT, waited, (1, 16))
    assert found.mfu_prefill == pytest.approx(0.3, rel=0.02)
    assert found.rms().calibrated < 0.01


def test_levels_without_latencies_are_fitted_by_throughput_alone(slow_server):
    bare = [CalibrationPoint(concurrency=p.concurrency, output_tokens_per_s=p.output_tokens_per_s) for p in slow_server]
    found = fitting.fit(LLAMA, H100, CHAT, bare, (1, 16, 64))
    assert {row.figure for row in found.errors_unseen} == {"output_tokens_per_s"}
    assert found.rms().calibrated < 0.02 < found.rms().data_sheet


def test_repeats_of_a_level_are_averaged(slow_server):
    split = [
        msgspec.structs.replace(each, output_tokens_per_s=each.output_tokens_per_s * factor)
        for each in slow_server
        for factor in (0.95, 1.05)
    ]
    found = fitting.fit(LLAMA, H100, CHAT, split, (1, 16))
    assert found.mbu == pytest.approx(0.6, rel=0.02)
    assert len({row.concurrency for row in found.errors_unseen}) * 3 == len(found.errors_unseen)


# ---- on what it is judged -------------------------------------------------------------------------------


def test_the_levels_that_judge_have_no_part_in_the_fit(slow_server, calibrated):
    elsewhere = changed(slow_server, 64, output_tokens_per_s=3.0, ttft_s=2.0)
    again = fitting.fit(LLAMA, H100, CHAT, elsewhere, (1, 16), source="results/slow")
    assert again.rms().calibrated > 0.1
    assert msgspec.structs.replace(again, errors_unseen=calibrated.errors_unseen) == calibrated


def test_the_levels_that_were_fitted_are_not_judged(calibrated):
    assert {row.concurrency for row in calibrated.errors_unseen} == set(LEVELS) - {1, 16}


def test_an_error_is_predicted_over_measured_minus_one():
    # A server exactly as on the data sheet, but for one level that gives twice as much as it should.
    points = changed(served(), 64, output_tokens_per_s=2.0)
    found = fitting.fit(LLAMA, H100, CHAT, points, (1, 16))
    row = next(row for row in found.errors_unseen if row.concurrency == 64 and row.figure == "output_tokens_per_s")
    assert row.measured == next(each.output_tokens_per_s for each in points if each.concurrency == 64)
    assert row.data_sheet == pytest.approx(-0.5)
    assert row.calibrated == pytest.approx(-0.5, abs=1e-3)
    at_16 = next(each.output_tokens_per_s for each in points if each.concurrency == 16)
    assert row.line_then_flat == pytest.approx(at_16 / row.measured - 1)


def test_the_three_predictions_are_judged_apart():
    def row(C, calibrated, data_sheet, flat, figure="output_tokens_per_s"):
        return UnseenError(
            figure=figure,
            concurrency=C,
            measured=1.0,
            calibrated=calibrated,
            data_sheet=data_sheet,
            line_then_flat=flat,
        )

    rows = (row(2, 0.03, 0.3, 0.6), row(4, -0.04, -0.4, -0.8), row(2, 9.0, 0.1, None, "ttft_s"))
    found = msgspec.structs.replace(by_hand(), errors_unseen=rows)
    assert astuple(found.rms()) == pytest.approx((0.05 / math.sqrt(2), 0.5 / math.sqrt(2), 1 / math.sqrt(2)))
    assert found.rms("ttft_s") == Rms(9.0, 0.1, None)
    assert found.rms("itl_s") == Rms(None, None, None)


def astuple(rms):
    return rms.calibrated, rms.data_sheet, rms.line_then_flat


def test_the_line_starts_at_the_least_named_level():
    named = [CalibrationPoint(concurrency=C, output_tokens_per_s=X) for C, X in ((16, 600.0), (2, 180.0))]
    assert [line_then_flat(named, C) for C in (1, 4, 6, 7, 100)] == [90.0, 360.0, 540.0, 600.0, 600.0]


# ---- its file, and where it holds -----------------------------------------------------------------------


def by_hand(**figures):
    usual = {
        "model": LLAMA.name, "weight_bytes": 16_059_990_016.0, "gpu": "h100-sxm", "mbu": 0.6, "mfu_prefill": 0.3,
        "mfu_decode": 0.45, "o_layer": 4e-5, "o_step": 1e-4, "o_req": 5e-6, "o_api": 0.01, "fitted": ("mbu",),
        "kept": {"o_api": "why"}, "fitted_on": (1.0, 16.0), "input_tokens": 1000.0, "output_tokens": 200.0,
        "errors_unseen": (),
    }  # fmt: skip
    return Calibration(**{**usual, **figures})


def test_it_takes_the_place_of_the_assumed_figures_and_of_nothing_else():
    there = deployment(gpu("h100-sxm"), max_num_seqs=7)
    assert apply(LLAMA, there, by_hand()) == msgspec.structs.replace(
        there, mbu=0.6, mfu_prefill=0.3, mfu_decode=0.45, o_layer=4e-5, o_step=1e-4, o_req=5e-6, o_api=0.01,
        o_token=0.0, o_first=0.0,  # which o_api has in it
    )  # fmt: skip


def test_another_model_card_or_quantisation_is_refused():
    with pytest.raises(HarnessError, match=r"was made for llama-3.1-8b \(16.1 GB\) on h100-sxm, not for qwen2.5-0.5b"):
        apply(QWEN, H100, by_hand())
    with pytest.raises(HarnessError, match=r"not for llama-3.1-8b \(16.1 GB\) on l4; calibrate on that one"):
        apply(LLAMA, deployment(gpu("l4")), by_hand())
    with pytest.raises(HarnessError, match=r"not for llama-3.1-8b \(9"):
        apply(model(model_config("llama-3.1-8b"), "llama-3.1-8b", dtype="fp8"), H100, by_hand())


def test_a_file_gives_back_what_was_written(calibrated):
    assert decode(encode(calibrated)) == calibrated
    assert encode(calibrated).endswith("}\n")


def test_a_file_that_is_none_is_refused_by_its_name():
    with pytest.raises(HarnessError, match=r"^toy.json: not a calibration: .*'mbuu'"):
        decode(encode(by_hand()).replace('"mbu"', '"mbuu"'), "toy.json")
    with pytest.raises(HarnessError, match=r"^toy.json: a calibration of format 2, not 1"):
        decode(encode(by_hand(format=2)), "toy.json")


def test_a_level_that_was_not_measured_is_refused_with_those_that_were(slow_server):
    with pytest.raises(HarnessError, match=r"--on: no valid level at 3; measured: 1, 2, 4"):
        fitting.fit(LLAMA, H100, CHAT, slow_server, (1, 3))
    with pytest.raises(HarnessError, match=r"no valid level at 1; measured: none"):
        fitting.fit(LLAMA, H100, CHAT, [])


def test_a_workload_without_output_tokens_is_refused(slow_server):
    with pytest.raises(HarnessError, match="without output tokens MBU cannot be told"):
        fitting.fit(LLAMA, H100, MeanLengths(1000, 0), slow_server, (1, 16))
