"""`knee calibrate model`, and the profile that it writes: data sheet and calibration stand apart wherever they show."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.data.machines import Card, Machine
from harness.decide import calibration
from harness.predict import catalog, fitting, question
from harness.predict.calibration import RANGES, Calibration, calibrated, decode, doubts, encode
from harness.predict.fitting import CalibrationPoint
from harness.results.result import Result
from harness.run import prediction
from harness.spec.scenario import Hardware
from harness.spec.work import means

DEMO = Path(__file__).parents[1] / "data" / "demo"
LIVE = Path(__file__).parents[2] / "results" / "live-vllm"
CHAT = question.Question(model="llama-3.1-8b", gpu="h100-sxm", input_tokens=1000, output_tokens=200)
ASKED = ("predict", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--input-tokens", "1000", "--output-tokens", "200")


def knee(*arguments: str) -> Outcome:
    return CliRunner().invoke(cli, list(arguments))


def profile(at_64: float = 1.0) -> Calibration:
    """Of a server that reads at 0.6 of its bandwidth, fitted at 1 and 16 and judged at 4 and 64.

    Its throughput at 64 is `at_64` times that of such a server.
    """
    made, where, workload = question.setup(CHAT)
    slow = msgspec.structs.replace(CHAT, levels=[1, 4, 16, 64], figures={"mbu": 0.6})
    points = [
        CalibrationPoint(
            concurrency=level.concurrency,
            output_tokens_per_s=level.output_tokens_per_s.mid * (at_64 if level.concurrency == 64 else 1),
            itl_s=level.itl_s, ttft_s=level.ttft_s,
        )
        for level in question.predict(slow).levels
    ]  # fmt: skip
    return fitting.fit(made, where, workload, points, [1, 16], source="results/x")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    path.write_text(encode(profile()))
    return str(path)


def test_both_predictions_stand_apart_and_the_data_sheets_is_as_without_a_profile(file: str) -> None:
    alone, both = (json.loads(knee(*ASKED, "--json", *more).output) for more in ((), ("--calibration", file)))
    own = both.pop("calibrated")
    assert alone.pop("calibrated") is None
    assert alone.pop("notes") == []
    assert both.pop("notes") == ["C = 64, 128, 256: far from the levels that were fitted (1 to 16)"]
    assert alone == both
    assert own["fitted_on"] == [1, 16]
    assert own["parameters"]["mbu"] == pytest.approx(0.6, rel=0.05)
    assert set(own["parameters"]) == {*RANGES, "o_step"}
    assert set(own["fitted"]).isdisjoint(own["kept"])
    one, sheet = own["levels"][0]["output_tokens_per_s"]["mid"], both["levels"][0]["output_tokens_per_s"]["mid"]
    assert one / sheet == pytest.approx(0.76, abs=0.05)  # 0.6/0.8 of the reading, none of the overhead


def test_the_band_of_a_calibrated_level_is_the_error_where_it_was_judged() -> None:
    made, where, workload = question.setup(CHAT)
    found = profile()
    own = calibrated(made, where, workload, [1, 64], found)
    assert own.error_unseen == found.rms().calibrated
    assert own.error_unseen is not None
    for level in own.levels:
        band = level.output_tokens_per_s
        assert (band.low, band.high) == pytest.approx(
            (band.mid * (1 - own.error_unseen), band.mid * (1 + own.error_unseen))
        )


def test_a_calibration_predicts_a_mixture_step_by_step_too() -> None:
    made, where, _ = question.setup(CHAT)
    mixture = [(200, 40), (8000, 80)]
    own = calibrated(made, where, mixture, [8], profile()).levels[0].output_tokens_per_s.mid
    by_means = calibrated(made, where, means(mixture), [8], profile()).levels[0].output_tokens_per_s.mid
    assert own != pytest.approx(by_means, rel=0.01)
    assert own == pytest.approx(by_means, rel=0.1)


def test_the_terminal_shows_both_in_columns_of_their_own(file: str) -> None:
    got = knee(*ASKED, "--calibration", file)
    assert got.exit_code == 0, got.output
    assert "calibrated on C = 1, 16 of results/x" in got.output
    head = next(line for line in got.output.splitlines() if "sheet tok/s" in line)
    assert "calibrated tok/s" in head


def test_a_profile_of_another_card_is_refused(file: str) -> None:
    got = knee(*[word if word != "h100-sxm" else "l40s" for word in ASKED], "--calibration", file)
    assert got.exit_code == 1
    assert got.output.startswith("error: --calibration: it was made for llama-3.1-8b (16.1 GB) on h100-sxm, not for")


@pytest.mark.slow
def test_a_result_folder_is_calibrated_on_two_levels_and_judged_on_the_others(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    got = knee("calibrate", "model", str(DEMO), "--on", "1,16", "--out", str(out))
    assert got.exit_code == 0, got.output
    assert "line, then flat" in got.output
    found = decode(out.read_bytes())
    assert (found.model, found.gpu, found.fitted_on) == ("llama-3.1-8b", "h100-sxm", (1.0, 16.0))
    # the simulated endpoint runs by the very model, so calibrating finds what it was given
    rms = found.rms()
    assert rms.calibrated is not None
    assert rms.line_then_flat is not None
    assert rms.calibrated < 0.05 < rms.line_then_flat
    assert {row.concurrency for row in found.errors_unseen} == {4, 8, 12, 20, 28}
    used = knee(
        "predict", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--input-tokens", "128", "--output-tokens", "32",
        "--calibration", str(out), "--json",
    )  # fmt: skip
    assert used.exit_code == 0, used.output


@pytest.mark.slow
def test_a_level_that_was_not_measured_is_refused_with_those_that_were(tmp_path: Path) -> None:
    got = knee("calibrate", "model", str(DEMO), "--on", "1,17", "--out", str(tmp_path / "p"))
    assert got.output == "error: --on: no valid level at 17; measured: 1, 4, 8, 12, 16, 20, 28\n"
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_what_a_folder_does_not_say_is_asked_for() -> None:
    run = Result.open(LIVE)
    known = calibration.hardware(run)
    if known.gpu is None:
        with pytest.raises(HarnessError, match="--gpu"):
            calibration.deployed(run, known, prediction.measure)
    filled = msgspec.structs.replace(known, gpu="l4", model_config="qwen2.5-0.5b", max_num_seqs=16)
    made, where = calibration.deployed(run, filled, prediction.measure)
    assert (made.name, where.gpu.key, where.max_num_seqs) == ("qwen2.5-0.5b", "l4", 16)
    assert where.kv_tokens == 2048 * 128, "the engine's own block count beats the estimate"


@pytest.mark.slow
def test_a_run_takes_the_profile_and_judges_both_predictions(tmp_path: Path, file: str) -> None:
    got = knee(
        "run", "--url", "sim:", "--levels", "1,2", "--level-seconds", "500ms", "--input-tokens", "64",
        "--output-tokens", "16", "--speed", "4", "--calibration", file, "--out", str(tmp_path / "run"),
        "--no-plots", "--quiet", "--json",
    )  # fmt: skip
    found = json.loads(got.stdout)["prediction"]
    own = found["calibrated"]
    assert [level["concurrency"] for level in own["levels"]] == [1, 2]
    assert own["source"] == "results/x"
    for sheet, mine in zip(found["levels"], own["levels"], strict=True):
        assert mine["output_tokens_per_s"]["mid"] < sheet["output_tokens_per_s"]["mid"]
        if sheet["measured_over_predicted"]:
            assert mine["measured_over_predicted"] > sheet["measured_over_predicted"]
    kept = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert kept["prediction"]["calibrated"] is not None, "made before any load"


# ---- what serves ----------------------------------------------------------------------------------------


MACHINE = Machine(
    cpu="EPYC", cpus=(0,), memory_bytes=64e9, read_bytes_per_s=20e9, copy_bytes_per_s=10e9, add_bytes_per_s=12e9,
    fp32_flops=2e11,
)  # fmt: skip


def test_a_measured_machine_stands_in_the_place_of_a_card_and_says_so() -> None:
    card = question.host(MACHINE)
    assert (card.key, card.bandwidth, card.flops["bf16"]) == ("host", 20e9, 2e11)
    found = question.predict(msgspec.structs.replace(CHAT, model="qwen2.5-0.5b", gpu=card))
    assert found.gpu == "host"
    assert any("measured by streams" in note for note in found.notes)
    assert found.assumptions.mfu_prefill == 0.6
    assert not any("data-sheet" in note for note in found.notes)


H100 = Card(name="NVIDIA H100 80GB HBM3", memory_bytes=81559 * 2**20, memory_clock_max_hz=2.619e9)


def test_a_card_is_found_by_what_its_driver_calls_it() -> None:
    found = prediction.find(Hardware(), [H100])
    assert found.card is not None
    assert found.card.key == "h100-sxm"
    assert found.notes == ["the GPU is h100-sxm by its driver"]
    assert prediction.find(Hardware(), None).card is None
    assert prediction.find(Hardware(), [H100, msgspec.structs.replace(H100, name="NVIDIA L4")]).card is None, (
        "which one serves?"
    )
    assert "2 GPUs are here, the prediction is for 1" in prediction.find(Hardware(), [H100, H100]).notes[1]


def test_several_gpus_need_to_be_told_how_they_share_the_model() -> None:
    card, wanted = catalog.gpu("h100-sxm"), Hardware(gpus=4, model_config="llama-3.1-8b")
    with pytest.raises(HarnessError, match="give --tp 4"):
        question.deployed(wanted, card, None)
    for tp, dp in ((4, 1), (2, 2), (1, 4)):
        found = question.deployed(msgspec.structs.replace(wanted, tp=tp), card, None)
        assert found is not None
        assert (found[1].tp, found[1].dp, found[1].gpus) == (tp, dp, 4)
    with pytest.raises(HarnessError, match="no whole replicas of 3"):
        question.deployed(msgspec.structs.replace(wanted, tp=3), card, None)


def test_dtypes_reach_the_model_and_the_engines_blocks_its_cache() -> None:
    wanted = Hardware(model_config="llama-3.1-8b", dtype="fp8", kv_dtype="fp8")
    found = question.deployed(wanted, catalog.gpu("h100-sxm"), {"num_gpu_blocks": "100", "block_size": "16"})
    assert found is not None
    made, where = found
    assert (made.stored.method, made.kv_bits, where.kv_tokens) == ("fp8", 8.0, 1600)


def test_blocks_that_groups_of_layers_share_are_not_taken_for_tokens() -> None:
    """Half of gpt-oss's layers have a window: a token takes a block's place in one group and none in the other."""
    wanted = Hardware(model_config="gpt-oss-20b")
    blocks = {"num_gpu_blocks": "15258", "block_size": "16"}
    assert question.deployed(wanted, catalog.gpu("h100-sxm"), blocks) == question.deployed(
        wanted, catalog.gpu("h100-sxm"), None
    )


def test_what_a_server_reaches_of_its_bandwidth_is_found() -> None:
    found = profile()
    assert found.mbu == pytest.approx(0.6, rel=0.02)
    assert {row.concurrency for row in found.errors_unseen} == {4, 64}
    doubted = " ".join(doubts(found, [4, 64]))
    assert "C = 64: far from the levels that were fitted (1 to 16)" in doubted
    assert "is nearer" not in doubted


def test_where_the_data_sheet_is_nearer_the_profile_says_so_and_both_are_shown(tmp_path: Path) -> None:
    # at 1 to 16 it is slower than the data sheet, at 64 twice as fast: what was fitted misses by more
    (tmp_path / "profile.json").write_text(encode(profile(at_64=2.0)))
    used = knee(*ASKED, "--calibration", str(tmp_path / "profile.json"), "--levels", "1,64")
    assert used.exit_code == 0, used.output
    assert "the data sheet is nearer than this calibration" in used.output
    assert "data sheet" in used.output
    assert "calibrated" in used.output
    assert "C = 64: far from" in used.output
