"""`knee predict`: ordinary options reach the golden figures, mistakes are one line, and it needs no heavy package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

from harness import cli as cli_module
from harness.cli import cli
from harness.data.prediction import Prediction
from harness.predict.catalog import model_config

CHAT = ("--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--input-tokens", "1000", "--output-tokens", "200")
DEMO = Path(__file__).parents[1] / "data" / "demo"
DEMO_OPTIONS = ("--model", "llama-3.1-8b", "--input-tokens", "128", "--output-tokens", "32")


def knee(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["predict", *arguments])


def prediction(*arguments: str) -> dict[str, Any]:
    got = knee(*arguments, "--json")
    assert got.exit_code == 0, got.output
    return dict(json.loads(got.output))


# ---- golden figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "figure", "expected", "tolerance"),
    [
        pytest.param(("--model", "llama-3.1-8b"), "kv_bytes_per_token", 131_072, 0, id="G7"),
        pytest.param(("--model", "llama-3.1-70b", "--tp", "4"), "kv_bytes_per_token", 327_680, 0, id="G22"),
        pytest.param(
            ("--model", "llama-3.1-70b", "--tp", "4", "--input-tokens", "4095", "--output-tokens", "2"),
            "kv_bytes_per_request", 1.34e9, 0.002, id="G22 at 4096",
        ),
        pytest.param(
            (*CHAT[:2], *CHAT[4:], "--mbu", "0.7", "--mfu", "0.5"), "prefill_s", 28.76e-3, 0.01, id="G33b: t_pre"
        ),
        pytest.param(("--model", "llama-3.1-8b"), "parameters", 8_030_261_248, 2e-4, id="G34: 8B"),
        pytest.param(("--model", "llama-3.1-70b", "--tp", "4"), "parameters", 70_553_706_496, 2e-4, id="G34: 70B"),
        pytest.param(
            ("--model", "llama-3.1-405b", "--tp", "8", "--dtype", "fp8"),
            "parameters", 405_853_388_800, 2e-4, id="G34: 405B",
        ),
        pytest.param(("--model", "mistral-7b"), "parameters", 7_248_023_552, 2e-4, id="G34: Mistral-7B"),
        pytest.param(("--model", "qwen2.5-0.5b"), "parameters", 494_032_768, 2e-4, id="G34: Qwen2.5-0.5B"),
        pytest.param(
            ("--model", "deepseek-v3", "--gpu", "h200-sxm", "--tp", "8"), "kv_bytes_per_token", 70_272, 0, id="G35"
        ),
        pytest.param(("--model", "mistral-nemo"), "kv_bytes_per_token", 163_840, 0, id="G36"),
        pytest.param(
            ("--model", "gpt-oss-20b", "--input-tokens", "4095", "--output-tokens", "2"),
            "kv_bytes_per_request", 103_809_024, 0, id="G38",
        ),
    ],
)  # fmt: skip
def test_a_golden_figure_is_reached_by_ordinary_options(
    options: tuple[str, ...], figure: str, expected: float, tolerance: float
) -> None:
    card = () if "--gpu" in options else ("--gpu", "h100-sxm")
    assert prediction(*options, *card)["assumptions"][figure] == pytest.approx(expected, rel=tolerance, abs=0)


def test_g21_is_reached_by_a_config_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model_config("llama-3.1-70b") | {"num_key_value_heads": 64}))
    options = ("--model-config", str(path), "--gpu", "h100-sxm", "--tp", "4", "--dtype", "fp8")
    has = prediction(*options, "--input-tokens", "4095", "--output-tokens", "2")["assumptions"]
    assert has["kv_bytes_per_token"] == 2_621_440
    assert has["kv_bytes_per_request"] == pytest.approx(10.74e9, rel=0.001)


def test_g33b_throughput_is_reached_by_ordinary_options() -> None:
    quiet = ("--layer-overhead", "0", "--step-overhead", "0", "--request-overhead", "0", "--weight-bytes", "16e9")
    found = prediction(*CHAT, *quiet, "--mbu", "0.7", "--mfu", "0.5", "--levels", "64")
    (level,) = found["levels"]
    assert level["output_tokens_per_s"]["mid"] == pytest.approx(3206.2, rel=0.01)


@pytest.mark.parametrize(
    ("options", "levels", "hit"),
    [
        (("--model", "mixtral-8x7b", "--gpu", "h100-sxm", "--tp", "2"), "1,4,16", [2.0, 5.469, 7.920]),
        (("--model", "deepseek-v3", "--gpu", "h200-sxm", "--tp", "8"), "16,64", [102.0, 222.4]),
    ],
)
def test_g37_experts_hit_are_reached_by_ordinary_options(
    options: tuple[str, ...], levels: str, hit: list[float]
) -> None:
    found = [level["experts_hit"] for level in prediction(*options, "--levels", levels)["levels"]]
    assert found == pytest.approx(hit, rel=0.001)


# ---- what is shown --------------------------------------------------------------------------------------


def test_the_table_shows_levels_and_limits() -> None:
    got = knee(*CHAT, "--levels", "1,64", "--slo", "ttft_p99=2s,itl=50ms", "--price", "2")
    assert got.exit_code == 0, got.output
    lines = got.output.splitlines()
    assert lines[0] == "llama-3.1-8b on 1 × h100-sxm, 1,000 tokens in, 200 out"
    head = next(line.split("  ") for line in lines if "TTFT ms" in line)
    assert [word.strip() for word in head if word.strip()] == [
        "C", "tok/s low", "tok/s mid", "tok/s high", "ITL ms", "TTFT ms", "req/s", "$/1M", "SLO", "mostly",
    ]  # fmt: skip
    limits = {line.split("  ")[0]: line for line in lines if line.split("  ")[0]}
    for limit in ("weights", "KV memory", "max_num_seqs", "compute", "KV traffic", "prefill", "SLO"):
        assert limit in limits
    assert [name for name, line in limits.items() if line.rstrip().endswith("← binds")] == ["SLO"]


def test_a_slice_is_smaller_than_its_card() -> None:
    whole, part = (
        prediction("--model", "llama-3.2-1b", "--gpu", key)["single_stream_tokens_per_s"]["mid"]
        for key in ("h100-sxm", "H100-SXM:3g.40gb")
    )
    assert 0.3 < part / whole < 1


def test_a_wrong_claim_that_an_input_walks_into_is_a_note() -> None:
    assert any("sparse peak" in note for note in prediction(*CHAT, "--peak-flops", "1979e12")["notes"])
    assert not any("sparse peak" in note for note in prediction(*CHAT, "--peak-flops", "989e12")["notes"])


def test_what_does_not_fit_is_told_the_claims_that_it_walks_into_before_the_error() -> None:
    less = ("--gpu-memory-utilization", "0.85")
    got = knee("--model", "llama-3.1-70b", "--gpu", "h100-sxm", "--dtype", "fp8", "--kv-dtype", "fp8", *less, "--json")
    assert (got.exit_code, got.stdout) == (1, "")
    *notes, error = got.stderr.splitlines()
    assert error.startswith("error: --gpu: llama-3.1-70b (73 GB of weights) does not fit on one h100-sxm")
    assert all(note.startswith("note: ") for note in notes)
    assert any("1.6 MB of KV a token; this one needs 163,840 B" in note for note in notes)
    assert any("leave no KV for any of them" in note for note in notes)
    plain = knee("--model", "llama-3.1-70b", "--gpu", "h100-sxm").stderr
    assert "note: 141 GB of 16-bit weights do not fit on one h100-sxm" in plain


def test_several_cards_are_told_of_an_encoder_as_one_is() -> None:
    options = ("--model", "bge-m3", "--price", "1", "--gpu")
    one, several = knee(*options, "l4").output, knee(*options, "l4,a10").output
    assert several.startswith("bge-m3, 512 tokens in; each card at its best load")
    assert "$/1M in" in one
    assert "$/1M in" in several
    assert "the most requests first" in knee(*options, "l4,a10", "--rank", "speed").output
    decoding = knee("--model", "llama-3.1-8b", "--price", "1", "--gpu", "l4,a10", "--rank", "speed").output
    assert decoding.startswith("llama-3.1-8b, 512 tokens in, 128 out; ")
    assert "$/1M in" not in decoding
    assert "the most tokens first" in decoding


def test_an_encoder_has_requests_and_no_decoding() -> None:
    options = ("--model", "bge-m3", "--gpu", "l4", "--levels", "1,8", "--price", "1")
    got = knee(*options)
    assert got.exit_code == 0, got.output
    assert "ITL" not in got.output
    assert "req/s mid" in got.output
    assert [level["itl_s"] for level in prediction(*options)["levels"]] == [None, None]


# ---- the step machine -----------------------------------------------------------------------------------

SHORT = (*CHAT[:4], "--input-tokens", "256", "--output-tokens", "32")


def machine(*arguments: str) -> list[dict[str, Any]]:
    return list(prediction(*SHORT, "--simulate", *arguments)["step_machine"])


def test_the_step_machine_stands_beside_the_closed_form_where_it_is_asked_for() -> None:
    found = prediction(*SHORT, "--levels", "1,8", "--simulate")
    jsonschema.validate(found, msgspec.json.schema(Prediction))
    for level, mine in zip(found["levels"], found["step_machine"], strict=True):
        assert mine["concurrency"] == level["concurrency"]
        assert mine["over_closed_form"] == pytest.approx(1, abs=0.02)
        ratio = mine["output_tokens_per_s"] / level["output_tokens_per_s"]["mid"]
        assert mine["over_closed_form"] == pytest.approx(ratio)
        assert mine["ttft_s"]["p99"] >= mine["ttft_s"]["p50"] > 0
    assert prediction(*SHORT, "--levels", "1,8")["step_machine"] == []


def test_its_table_follows_that_of_the_closed_form() -> None:
    got = knee(*SHORT, "--levels", "1,8", "--simulate")
    assert got.exit_code == 0, got.output
    lines = got.output.splitlines()
    at = lines.index("By the step machine, closed loop")
    assert lines.index("By users in flight") < at < lines.index("Limits")
    assert [row.split()[0] for row in lines[at + 1 : at + 4]] == ["C", "1", "8"]
    assert "step machine" not in knee(*SHORT, "--levels", "1,8").output


@pytest.mark.slow
def test_requests_that_come_in_bursts_wait_longer_and_come_the_same_each_time() -> None:
    kinds = ("constant", "poisson", "gamma(0.2)")
    waits = [machine("--rate", "20", "--arrivals", kind)[0]["ttft_s"]["p99"] for kind in kinds]
    assert waits[0] < 0.8 * waits[1] < 0.8 * 0.8 * waits[2]
    assert machine("--rate", "20") == machine("--request-rate", "20", "--arrivals", "poisson")
    assert machine("--rate", "20", "--arrivals", "gamma(1)") == machine("--rate", "20")


def test_arrivals_with_rates_of_their_own_need_no_other() -> None:
    (own,) = machine("--arrivals", "series(0s:10,5s:30)")
    assert own["rate"] == 20.0
    assert own == machine("--rate", "20", "--arrivals", "series(0s:10,5s:30)")[0]
    assert own["offered_requests_per_s"] == pytest.approx(20.0, rel=0.05)
    assert own["window_s"] / 10 == pytest.approx(round(own["window_s"] / 10), abs=0.01), "whole periods, and a step"
    assert own["ttft_s"]["p99"] > machine("--rate", "20")[0]["ttft_s"]["p99"]


def test_rates_stand_in_the_place_of_the_levels() -> None:
    got = knee(*SHORT, "--simulate", "--rate", "5,20", "--levels", "1")
    assert got.exit_code == 0, got.output
    lines = got.output.splitlines()
    at = lines.index("By the step machine, open loop")
    assert [row.split()[0] for row in lines[at + 2 : at + 4]] == ["5", "20"]
    levels = machine("--rate", "5,20")
    assert [(level["concurrency"], level["rate"]) for level in levels] == [(None, 5.0), (None, 20.0)]
    assert levels[0]["requests_per_s"] == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize(
    ("option", "figure", "percentile", "factor"),
    [
        (("--prefix-hit", "0.9"), "ttft_s", "mean", (0, 0.8)),
        (("--max-num-batched-tokens", "64"), "itl_s", "max", (0, 0.8)),  # a chunk stands in the way, not a prompt
        (("--draft-tokens", "3", "--acceptance", "0.8"), "itl_s", "mean", (0, 0.8)),  # prompts are as long as before
        (("--fused", "1"), "e2e_s", "mean", (0, 0.99)),
        (("--max-num-seqs", "4"), "ttft_s", "mean", (2, 1000)),
    ],
)
def test_what_the_server_does_reaches_the_machine(
    option: tuple[str, ...], figure: str, percentile: str, factor: tuple[float, float]
) -> None:
    long = ("--input-tokens", "2000", "--levels", "8")
    (plain,), (changed,) = machine(*long), machine(*long, *option)
    low, high = factor
    assert low < changed[figure][percentile] / plain[figure][percentile] < high


# ---- which GPU ------------------------------------------------------------------------------------------


def test_a_demand_is_answered_by_a_card_with_its_reason_and_the_runner_up() -> None:
    got = knee("--model", "llama-3.1-8b", "--gpu", "all", "--rps", "1", *CHAT[4:])
    pick = next(line for line in got.output.splitlines() if line.startswith("Pick "))
    assert re.search(
        r"Pick 1 × \S+ in \d replicas for 1 request/s: \$[\d,]+ a month, the cheapest of \d+ cards; ", pick
    )
    assert re.search(r"Next is \d × \S+: \$[\d,]+ a month, ", got.output)
    assert "$/month" in got.output
    one = knee("--model", "llama-3.1-8b", "--gpu", "bandwidth=936GB/s,memory=24GiB,fp16=71T", "--rps", "2", "--json")
    (described,) = json.loads(one.output)
    assert described["fleet"]["replicas"] > 1
    for options, said in (
        (("--rps", "0"), "--rps"), (("--rps", "1", "--utilization", "2"), "--utilization"),
        (("--rps", "1", "--tp", "2"), "--tp"), (("--rps", "1,2"), "--rps"), (("--spare", "1"), "--spare"),
    ):  # fmt: skip
        refused = knee("--model", "llama-3.1-8b", "--gpu", "l4", *options)
        assert refused.exit_code == 1
        assert said in refused.output


def test_every_card_is_ranked_and_misfits_say_why() -> None:
    got = knee("--model", "llama-3.1-70b", "--gpu", "all", "--slo", "itl=50ms", *CHAT[4:])
    assert got.exit_code == 0, got.output
    fit, misfits = got.output.split("Cards that do not")
    assert "the cheapest tokens first" in fit
    assert "does not fit" in misfits
    choices = json.loads(knee("--model", "llama-3.1-70b", "--gpu", "all", "--json").output)
    known = [each for each in choices if not each["why_not"] and each["constants"] != "guess"]
    prices = [each["usd_per_million_slow"] for each in known if each["usd_per_million_slow"]]
    assert prices == sorted(prices)
    assert len(prices) > 5


def test_the_fastest_come_first_where_speed_is_asked() -> None:
    options = ("--model", "llama-3.1-8b", "--gpu", "l4, h100-sxm,h100-sxm:3g.40gb", "--rank", "speed", "--json")
    choices = json.loads(knee(*options).output)
    assert {each["gpu"] for each in choices} == {"l4", "h100-sxm", "h100-sxm:3g.40gb"}
    speeds = [each["output_tokens_per_s"]["mid"] for each in choices if not each["why_not"]]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.slow
def test_a_measured_result_stands_beside_the_prediction_of_its_card() -> None:
    """It was simulated when a prompt beside others still read the weights: a tenth slower where 16 are in flight."""
    options = (
        *DEMO_OPTIONS,
        "--gpu",
        "h100-sxm",
        "--max-num-seqs",
        "16",
        "--levels",
        "1,2,16",
        "--measured",
        str(DEMO),
    )
    ratios = [level["measured_over_predicted"] for level in prediction(*options)["levels"]]
    assert ratios[1] is None
    assert [ratios[0], ratios[2]] == pytest.approx([1, 0.9], rel=0.03)


@pytest.mark.slow
def test_a_result_of_another_workload_is_refused() -> None:
    got = knee(*CHAT, "--measured", str(DEMO))
    assert got.exit_code == 1
    assert "was measured with 128 tokens in and 32 out" in got.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hardware", "fact"),
    [
        (["--gpu", "l4"], "it was measured on h100-sxm, not on l4; give --gpu h100-sxm, or leave it out"),
        (["--gpu", "h100-sxm", "--tp", "2"], "it was measured on 1 GPU, and 2 are predicted; predict as many"),
    ],
)
def test_a_result_of_another_card_or_of_more_cards_is_refused(hardware: list[str], fact: str) -> None:
    got = knee(*DEMO_OPTIONS, *hardware, "--measured", str(DEMO))
    assert got.exit_code == 1
    assert fact in " ".join(got.output.split())


# ---- what a run predicts --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_gives_its_slo_and_its_price_to_its_own_prediction(tmp_path: Path) -> None:
    load = ("--input-tokens", "64", "--output-tokens", "16", "--levels", "1,16", "--level-seconds", "300ms")
    settings = ("--slo", "ttft_p99=40ms,itl=1s", "--price", "2", "--max-num-seqs", "4", "--speed", "4")
    out = tmp_path / "run"
    CliRunner().invoke(cli, ["run", "--url", "sim:", *load, *settings, "--out", str(out), "--no-plots", "--quiet"])
    for file in ("manifest.json", "summary.json"):
        found = json.loads((out / file).read_text())["prediction"]
        assert [level["meets_slo"] for level in found["levels"]] == [True, False], "a queue of 12 before 4 seats"
        assert found["caps"]["slo"] < 16
        for level in found["levels"]:
            paid = 2 / 3600 / level["output_tokens_per_s"]["mid"] * 1e6
            assert level["usd_per_million"]["mid"] == pytest.approx(paid)


# ---- a scenario -----------------------------------------------------------------------------------------

MIXED = """
[[class]]
name = "chat"
share = 20
input = "300±50"
output = "lognormal(60,30)"
[[class]]
name = "document"
input = "16k"
output = 32
[ramp]
levels = [1, 8]
[hardware]
gpu = "h100-sxm"
model_config = "llama-3.1-8b"
price = 2.5
max_num_seqs = 64
[slo]
ttft_p99 = "2s"
"""


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED)
    return str(path)


def test_a_scenario_of_a_run_is_predicted_without_any_option(mixed: str) -> None:
    found = prediction(mixed)
    jsonschema.validate(found, msgspec.json.schema(Prediction))
    assert (found["model"], found["gpu"]) == ("llama-3.1-8b", "h100-sxm")
    assert (round(found["input_tokens"]), round(found["output_tokens"])) == (1054, 59)  # .952 · 300 + .048 · 16,000
    assert found["caps"]["max_num_seqs"] == 64
    assert [level["concurrency"] for level in found["step_machine"]] == [1, 8]
    for level, stepped in zip(found["levels"], found["step_machine"], strict=True):
        assert level["output_tokens_per_s"]["mid"] == stepped["output_tokens_per_s"]
        assert level["usd_per_million"]["mid"] > 0
        assert level["meets_slo"] is True


def test_options_stand_in_place_of_the_scenario_s_fields(mixed: str) -> None:
    options = ("--gpu", "h200-sxm", "--levels", "4", "--max-num-seqs", "32", "--price", "5", "--slo", "ttft=1ms")
    found = prediction(mixed, *options)
    assert (found["gpu"], found["caps"]["max_num_seqs"]) == ("h200-sxm", 32)
    (level,) = found["levels"]
    assert (level["concurrency"], level["meets_slo"]) == (4, False)
    twice = prediction(mixed, "--levels", "1", "--price", "5")["levels"][0]["usd_per_million"]["mid"]
    assert twice == pytest.approx(2 * prediction(mixed, "--levels", "1")["levels"][0]["usd_per_million"]["mid"])


def test_the_scenario_s_price_is_of_its_own_card(mixed: str) -> None:
    ranked = json.loads(knee(mixed, "--gpu", "h100-sxm,l40s", "--json").output)
    prices = {each["gpu"]: each["usd_per_hour"] for each in ranked if each["tp"] == 1}
    assert len(set(prices.values())) == 2


def test_how_gpus_share_the_work_is_from_the_scenario_or_from_the_options(tmp_path: Path) -> None:
    path = tmp_path / "tp.toml"
    path.write_text('[hardware]\ngpu = "h100-sxm"\nmodel_config = "llama-3.1-70b"\ngpus = 8\ntp = 4\n')
    assert (prediction(str(path))["gpus"], prediction(str(path))["assumptions"]["dp"]) == (8, 2)
    assert prediction(str(path), "--tp", "8")["assumptions"]["tp"] == 8
    path.write_text('[hardware]\ngpu = "h100-sxm"\nmodel_config = "llama-3.1-70b"\ngpus = 8\n')
    assert prediction(str(path), "--tp", "4", "--gpus", "8")["assumptions"]["dp"] == 2
    assert "2 × h200-sxm" in knee(str(path), "--gpu", "h200-sxm,b200-sxm").output


def test_lengths_that_vary_may_be_given_as_options(tmp_path: Path) -> None:
    one = (*CHAT[:4], "--output-tokens", "50", "--levels", "8")
    varied, alike = prediction(*one, "--input-tokens", "100..20000"), prediction(*one, "--input-tokens", "10050")
    assert (varied["input_tokens"], len(varied["step_machine"])) == (pytest.approx(10050, rel=1e-3), 1)
    assert alike["step_machine"] == []
    rates = prediction(*one, "--input-tokens", "100..900", "--simulate", "--rate", "2")["step_machine"]
    assert [(level["concurrency"], level["rate"]) for level in rates] == [(None, 2.0)]
    assert varied["assumptions"]["prefill_s"] > alike["assumptions"]["prefill_s"]  # by the squares of long prompts


def test_a_scenario_with_rates_is_simulated_at_them(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text('[ramp]\nrates = [5, 10]\narrivals = "gamma(0.25)"\n[hardware]\ngpu = "h100-sxm"\n')
    found = prediction(str(path), "--model", "llama-3.1-8b")["step_machine"]
    assert [level["rate"] for level in found] == [5.0, 10.0]
    options = ("--simulate", "--rate", "5,10", "--arrivals", "gamma(0.25)", "--input-tokens", "512")
    assert found == prediction(*CHAT[:4], *options, "--output-tokens", "128")["step_machine"]


def test_what_prompts_share_is_cached(tmp_path: Path) -> None:
    path = tmp_path / "prefix.toml"
    path.write_text("[workload]\ninput_tokens = 100\n[workload.prefix]\ntokens = 900\n")
    found = prediction(str(path), *CHAT[:4])
    assert (found["input_tokens"], found["assumptions"]["prefix_hit"]) == (1000, 0.9)
    assert "prefix_hit" not in prediction(str(path), *CHAT[:4], "--prefix-hit", "0")["assumptions"]


@pytest.mark.parametrize(
    ("toml", "options", "line"),
    [
        (MIXED, ("--input-tokens", "512"), "error: --input-tokens: classes have lengths of their own"),
        (MIXED, ("--output-tokens", "0"), "error: --output-tokens: classes have lengths of their own"),
        (
            "[workload.session]\nturns = 3\nuser_tokens = 50", CHAT[:4],
            "error: x.toml: $.workload: the prompts of sessions and graphs grow with every answer",
        ),
        (
            '[workload.dataset]\npath = "trace.jsonl"', (*CHAT[:4], "--input-tokens", "9"),
            "error: x.toml: $.workload.dataset: the lengths of a dataset are not predicted",
        ),
        ("[hardware]\ngpus = 8\n", CHAT[:4], "error: --gpus: 8 GPUs, but not how they share the model"),
        ("[hardwear]\n", CHAT[:4], "error: x.toml: unknown field 'hardwear'"),
        ('[workload]\noutput_tokens = "100..200000"', CHAT[:4], "error: --input-tokens: a request of 200,"),
        ("", (*CHAT[:4], "--input-tokens", "9..3"), "error: --input-tokens: '9..3' is not a length"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_scenario_or_against_one_is_one_line(
    toml: str, options: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text(toml)
    got = knee("x.toml", *options)
    assert got.exit_code == 1, got.output
    assert got.output.startswith(line)
    assert got.output.count("\n") == 1


def test_a_dataset_s_means_are_predicted_where_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[workload.dataset]\npath = "trace.jsonl"\n')
    found, wanted = prediction(str(path), *CHAT), prediction(*CHAT)
    for figure in ("input_tokens", "output_tokens", "hinge_concurrency", "plateau_tokens_per_s"):
        assert found[figure] == wanted[figure]


def test_a_scenario_that_names_no_card_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("")
    assert knee(str(path)).exit_code == 2


# ---- mistakes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--gpu", "h1000", "--model", "llama-3.1-8b"), "error: --gpu: unknown GPU 'h1000'"),
        (("--gpu", "h100-sxm", "--model", "lama-3.1-8b"), "error: --model: unknown model 'lama-3.1-8b'"),
        ((*CHAT, "--tp", "3"), "error: --tp: 3 GPUs cannot share the 32 heads of llama-3.1-8b"),
        ((*CHAT, "--output-tokens", "x"), "error: --output-tokens: 'x' is not a length"),
        (
            (*CHAT, "--input-tokens", "0"),
            "error: --input-tokens: '0' is not a length",
        ),
        ((*CHAT, "--mbu", "0"), "error: --mbu: 0 is not above 0"),
        ((*CHAT, "--price", "-1"), "error: --price: a price is a number from 0 on"),
        ((*CHAT, "--slo", "itl"), "error: --slo: 'itl' has no '='"),
        ((*CHAT, "--host-cpus", "0"), "error: --host-cpus: it is for --gpu host, not for h100-sxm"),
        ((*CHAT, "--calibration", "none.json"), "error: none.json: No such file or directory"),
        (
            ("--model", "llama-3.1-8b", "--gpu", "all", "--tp", "2"),
            "error: --tp: several cards are tried in every size",
        ),
        ((*CHAT, "--rate", "5"), "error: --rate: it has no effect without --simulate"),
        ((*CHAT, "--arrivals", "constant"), "error: --arrivals: it has no effect without --simulate"),
        ((*CHAT, "--simulate", "--arrivals", "constant"), "error: --arrivals: it has no effect without --rate"),
        ((*CHAT, "--simulate", "--rate", "0"), "error: --rate: '0' names no rate above 0"),
        ((*CHAT, "--simulate", "--rate", "5", "--arrivals", "gamma(0)"), "error: --arrivals: a shape of 0 is below"),
        ((*CHAT, "--simulate", "--rate", "5", "--arrivals", "trac"), "error: --arrivals: unknown arrivals 'trac'"),
        ((*CHAT, "--simulate", "--rate", "5", "--arrivals", "trace"), "error: --arrivals: no dataset has times"),
        ((*CHAT, "--simulate", "--rate", "1M"), "error: --rate: 1e+06 requests/s are far above the"),
        ((*CHAT, "--draft-tokens", "-1"), "error: --draft-tokens: -1 drafted tokens are too few"),
        (("--model", "bge-m3", "--gpu", "l4", "--simulate"), "error: --simulate: the workload has no output tokens"),
        (("--model", "llama-3.1-8b", "--gpu", "all", "--simulate"), "error: --simulate: it is for one card"),
        (("--model", "a b c", "--gpu", "l4", "--hub"), "error: --hub: no config.json of 'a b c'"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(
    arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = knee(*arguments)
    assert got.exit_code == 1, got.output
    assert got.output.startswith(line)
    assert got.output.count("\n") == 1
    assert "; " in got.output, "the way out is named"


def test_without_a_model_or_a_card_it_is_a_usage_error() -> None:
    for arguments in (("--gpu", "l4"), ("--model", "llama-3.1-8b")):
        assert knee(*arguments).exit_code == 2


@pytest.mark.slow
def test_a_prediction_imports_no_heavy_package() -> None:
    heavy = ["numpy", "pandas", "pyarrow", "matplotlib", "transformers", "httpx", "psutil"]
    heavy += ["harness.predict.simulate", "harness.predict.batching", "harness.predict.stepped"]  # of --simulate
    script = (
        "import sys; from harness.cli import cli; cli(sys.argv[1:], standalone_mode=False);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    for extra in ((), ("--json",)):
        ran = subprocess.run(
            [sys.executable, "-c", script, "predict", *CHAT, *extra], capture_output=True, text=True, check=True
        )
        assert ran.stderr.strip() == "[]"


def test_the_package_offers_the_command_and_main() -> None:
    assert {"run", "predict", "report", "fit", "calibrate", "sim"} <= set(cli_module.cli.commands)
    assert callable(cli_module.main)


def test_two_pools_are_predicted_within_limits_beside_as_many_gpus_that_do_both() -> None:
    pools = ("--prefill-gpus", "2", "--decode-gpus", "2", "--slo", "ttft_p99=1s,tpot=20ms", "--rps", "4")
    got = knee("--model", "llama-3.1-8b", "--gpu", "h100-sxm", *pools, *CHAT[4:])
    assert got.exit_code == 0, got.output
    assert "2 + 2 GPUs serve at least" in got.output
    assert "4 for both" in got.output
    found = json.loads(knee("--model", "llama-3.1-8b", "--gpu", "h100-sxm", *pools, "--json").output)
    assert (found["prefill"]["gpus"], found["decode"]["replicas"]) == (2, 2)
    shown = knee("--model", "llama-3.1-8b", "--gpu", "h100-sxm", *pools[:2], "--decode-gpus", "4", "--prefill-tp", "2")
    assert "2 + 4 GPUs serve at least" in shown.output


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ((), "--decode-gpus: two pools need both sizes"),
        (("--decode-gpus", "2", "--simulate"), "--simulate: "),
        (("--decode-gpus", "2", "--dp", "2"), "--dp: "),
        (("--decode-gpus", "2", "--gpu", "all"), "--gpu: "),
    ],
)
def test_what_two_pools_cannot_be_is_refused(more: tuple[str, ...], place: str) -> None:
    got = knee("--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--prefill-gpus", "2", *more)
    assert got.exit_code == 1
    assert place in got.stderr
