"""Summaries as runs leave them, for the tests of the report: whole, simulated, interrupted, and full of holes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness.base.files import write_json
from harness.data.judgement import Verdict
from harness.data.levels import LevelSummary
from harness.data.machines import Host
from harness.data.manifest import Manifest, Simulated, Workload
from harness.data.prediction import Assumptions, Band, PredictedLevel, Prediction
from harness.data.summary import (
    BEYOND,
    FOUND,
    NONE,
    PROVISIONAL,
    ClientSummary,
    Cost,
    Curve,
    CurvePoint,
    Headline,
    Knees,
    Settle,
    Summary,
)
from harness.data.views import ClientView, Estimate, ServerView, Spread, Value
from harness.spec.scenario import Ramp, Scenario, Target

A, B, P = 7.0e-3, 1.0e-4, 1 / 5.375e-4  # s, s, tok/s: the hinge a/(1/P - b) is 16 in flight
LEVELS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
NOISE = (0.004, -0.006, 0.003, 0.008, -0.011, -0.013, 0.006, -0.004, 0.005, -0.002)
EMPTY = Spread(None, None, None, None, None, None, 0)

MANIFEST = Manifest(
    name="chat",
    created="2026-03-04 12:00",
    url="http://127.0.0.1:8000",
    model="meta-llama/Llama-3.1-8B-Instruct",
    server={"name": "vllm", "version": "0.25.1"},
    gpu="h100-sxm",
    gpus=1,
    host=Host(system="Linux-6.8.0", cpus=16),
    harness_version="0.1.0",
    scenario=Scenario(target=Target(model="meta-llama/Llama-3.1-8B-Instruct"), ramp=Ramp(levels=list(LEVELS))),
    workload=Workload(input_tokens=1000, output_tokens=200),
    command="knee run --url http://127.0.0.1:8000 --gpu h100-sxm --levels 1,2,4,8,12,16,24,32,48,64",
)
SIMULATED_MANIFEST = msgspec.structs.replace(
    MANIFEST, url="sim:", simulated=Simulated(profile="llama-3.1-8b/h100-sxm", speed=20)
)


def throughput(n: float) -> float:
    """The curve that all these summaries were drawn from; output tokens/s."""
    return min(n / (A + B * n), P)


def line(lowest: int, highest: int, of: Callable[[float], float] = throughput) -> list[CurvePoint]:
    """The curve over levels, with a band of ±1 %."""
    places = [lowest * (highest / lowest) ** (i / 32) for i in range(33)]
    return [CurvePoint(0.992 * C, C, of(0.992 * C), 0.99 * of(0.992 * C), 1.01 * of(0.992 * C)) for C in places]


def spread(middle: float, n: int) -> Spread:
    """A distribution about `middle`, with the percentiles that n samples carry."""

    def carried(needed: int, factor: float) -> float | None:
        return middle * factor if n >= needed else None

    return Spread(
        middle * 1.02, carried(11, 1.0), carried(64, 1.15), carried(130, 1.2), carried(662, 1.4), middle * 1.6, n
    )


def level(concurrency: int, noise: float = 0.0, **changes: Any) -> LevelSummary:
    n = concurrency * 0.992
    x = throughput(n) * (1 + noise)
    half = 0.008 * x
    itl = min(n, 16.0) / throughput(min(n, 16.0))
    ttft = 0.03 + max(0.0, n - 16.0) * 200 / P
    count = max(20, int(x / 200 * 30))
    made = LevelSummary(
        concurrency=concurrency,
        repeat=0,
        in_flight=n,
        little_in_flight=n * 1.003,
        window_s=30.0,
        window=(100.0, 130.0),
        requests=count,
        errors=0,
        error_rate=0.0,
        errors_by_type={},
        cancelled=0,
        output_tokens_per_s=Estimate(x, (x - half, x + half)),
        output_tokens_per_s_se=0.004 * x,
        output_tokens_per_s_per_gpu=x,
        tokens_per_s_per_user=1 / itl,
        peak_output_tokens_per_s=x * 1.05,
        input_tokens_per_s=Estimate(5 * x, (5 * (x - half), 5 * (x + half))),
        cached_input_fraction=0.0,
        decode_tokens_per_s=x * 0.995,
        prefill_tokens_per_s=None,
        requests_per_s=Estimate(x / 200, None),
        discarded_tokens_per_s=0.0,
        unplaced_tokens=0,
        input_tokens_mean=1000.0,
        output_tokens_mean=200.0,
        ttft_s=spread(ttft, count),
        ttfat_s=spread(ttft, count),
        itl_s=spread(itl, count * 199),
        icl_s=spread(itl, count * 199),
        tpot_s=spread(itl, count),
        e2e_s=spread(ttft + 199 * itl, count),
        lag_s=spread(2e-4, count),
        goodput_requests_per_s=None,
        goodput_tokens_per_s=None,
        slo_met_fraction=None,
        tokens_per_chunk=1.0,
        server=ServerView(running=min(n, 16.0), waiting=max(0.0, n - 16.0), kv_usage=0.2),
        client=ClientView(cpu_fraction=0.11, read_delay_p99_s=1e-4, merged_fraction=0.0, limited=False),
        verdicts=[],
    )
    return msgspec.structs.replace(made, **changes)


def prediction(levels: tuple[int, ...], measured: Mapping[int | None, float], simulated: bool = False) -> Prediction:
    rows = []
    for concurrency in levels:
        mid = throughput(concurrency) * 1.06
        ratio = measured[concurrency] / mid if concurrency in measured else None
        band = Band(mid * 0.78, mid, mid * 1.22)
        rows.append(
            PredictedLevel(
                concurrency=concurrency,
                output_tokens_per_s=band,
                itl_s=0.008,
                ttft_s=0.03,
                measured_over_predicted=ratio,
            )
        )
    return Prediction(
        model="llama-3.1-8b",
        gpu="h100-sxm",
        gpus=1,
        simulated=simulated,
        input_tokens=1000.0,
        output_tokens=200.0,
        binding_cap="max_num_seqs",
        caps={"max_num_seqs": 16.0, "kv_memory": 47.0, "compute": 310.0, "slo": None},
        plateau_tokens_per_s=Band(P * 1.06 * 0.78, P * 1.06, P * 1.06 * 1.22),
        single_stream_tokens_per_s=Band(117.0, 149.3, 182.0),
        hinge_concurrency=16.0,
        levels=rows,
        assumptions=Assumptions(mbu=0.8, mfu_prefill=0.45),
    )


def full() -> Summary:
    """Ten levels through a hinge at 16, a plateau with its intervals, a prediction, a price, one of each verdict."""
    late = Verdict(
        "client_limited", "invalid", "the load generator used 93 % of its core", "give it more workers: --workers", 64
    )
    short = [
        Verdict("window_short", "doubt", f"the window held {n} request times, not 20", "--level-seconds 60", c)
        for c, n in ((1, 18), (2, 19))
    ]
    levels = [level(c, noise) for c, noise in zip(LEVELS, NOISE, strict=True)]
    levels[0] = msgspec.structs.replace(levels[0], verdicts=[short[0]])
    levels[1] = msgspec.structs.replace(levels[1], verdicts=[short[1]])
    levels[-1] = msgspec.structs.replace(
        levels[-1], verdicts=[late], errors=3, error_rate=0.0107, errors_by_type={"timeout": 2, "reset": 1}
    )
    measured = {x.concurrency: x.output_tokens_per_s.mean or 0.0 for x in levels}
    hinge, plateau = Value(16.2, (15.4, 17.1)), Value(1853.4, (1839.0, 1868.0))
    return Summary(
        simulated=False,
        complete=True,
        verdicts=[Verdict("server_version_unknown", "note", "the server publishes no version")],
        knee_concurrency=16.2,
        knee=Headline("hinge", FOUND, 16.2, (15.4, 17.1)),
        levels=levels,
        curve=Curve(
            state=FOUND,
            single_stream_tokens_per_s=Value(140.8, (139.6, 142.1)),
            hinge_concurrency=hinge,
            plateau_tokens_per_s=plateau,
            plateau_reached=True,
            dip=None,
            parameters={"noise": 0.006},
            line=line(1, 64),
            verdicts=[],
        ),
        knees=Knees(hinge=hinge, plateau95=Value(14.1, (13.5, 14.8)), half_point=Value(7.19, (7.1, 7.3))),
        prediction=prediction(LEVELS, measured),
        cost=Cost(usd_per_million_output_tokens=0.2998, usd_per_gpu_hour=2.0, gpus=1, at_concurrency=16.2),
        client=ClientSummary(timestamp_error_p99_s=4e-5, timestamp_source="kernel"),
    )


def simulated() -> Summary:
    """A run of the simulated endpoint whose levels end below its knee: no plateau, an unbounded hinge."""
    levels = [level(c, noise) for c, noise in zip((1, 2, 4, 8), NOISE, strict=False)]
    measured = {x.concurrency: x.output_tokens_per_s.mean or 0.0 for x in levels}
    made = full()
    not_reached = Verdict(
        "plateau_not_reached", "note", "no level lies above a hinge", "add levels: --max-concurrency 64"
    )
    curve = Curve(
        state=BEYOND,
        reasons=["throughput still rises with load"],
        settle=Settle([16, 32], 48.0),
        at_least_concurrency=8.0,
        expected_concurrency=15.7,
        expected_by="prediction",
        single_stream_tokens_per_s=Value(140.8, (138.0, 143.5)),
        hinge_concurrency=Value(None, (9.4, None)),
        plateau_tokens_per_s=Value(None, (1010.0, None)),
        plateau_reached=False,
        dip=None,
        parameters={"noise": 0.004},
        line=line(1, 8),
        verdicts=[not_reached],
    )
    return msgspec.structs.replace(
        made,
        simulated=True,
        verdicts=[],
        knee_concurrency=None,
        knee=Headline("hinge", BEYOND),
        levels=levels,
        curve=curve,
        knees=Knees(),
        prediction=prediction((1, 2, 4, 8), measured, simulated=True),
        cost=None,
    )


def interrupted() -> Summary:
    """Two levels and then Ctrl-C: no curve, no prediction."""
    stopped = Verdict("interrupted", "note", "stopped by the operator during C = 4")
    return msgspec.structs.replace(
        full(),
        complete=False,
        verdicts=[stopped],
        knee_concurrency=None,
        knee=Headline("hinge", NONE),
        levels=[level(1), level(2)],
        curve=None,
        knees=Knees(),
        prediction=None,
        cost=None,
    )


def hollow() -> Summary:
    """A run in which almost nothing could be measured: every number that may be missing is."""
    nothing = level(
        4,
        in_flight=None,
        little_in_flight=None,
        requests=9,
        errors=9,
        error_rate=1.0,
        errors_by_type={"http_5xx": 9},
        output_tokens_per_s=Estimate(None),
        output_tokens_per_s_se=None,
        output_tokens_per_s_per_gpu=None,
        tokens_per_s_per_user=None,
        peak_output_tokens_per_s=None,
        input_tokens_per_s=Estimate(None),
        cached_input_fraction=None,
        decode_tokens_per_s=None,
        requests_per_s=Estimate(None),
        discarded_tokens_per_s=None,
        input_tokens_mean=None,
        output_tokens_mean=None,
        ttft_s=EMPTY,
        ttfat_s=EMPTY,
        itl_s=EMPTY,
        icl_s=EMPTY,
        tpot_s=EMPTY,
        e2e_s=EMPTY,
        lag_s=EMPTY,
        tokens_per_chunk=None,
        server=None,
        client=ClientView(),
        verdicts=[Verdict("errors_above_1_percent", "invalid", "all 9 requests failed", "read the server's log", 4)],
    )
    curve = Curve(
        reasons=["every level is invalid"],
        single_stream_tokens_per_s=Value(None),
        hinge_concurrency=Value(None),
        plateau_tokens_per_s=Value(None),
        plateau_reached=False,
        dip=None,
        parameters={},
        verdicts=[],
    )
    made = prediction((4,), {})
    bare = msgspec.structs.replace(made, binding_cap=None, caps={"kv_memory": None}, hinge_concurrency=None)
    return msgspec.structs.replace(
        full(),
        verdicts=[],
        knee_concurrency=None,
        knee=Headline("hinge", NONE),
        levels=[nothing],
        curve=curve,
        knees=Knees(),
        prediction=bare,
        cost=Cost(),
        client=ClientSummary(),
    )


def provisional() -> Summary:
    """Six levels of which one lies past the knee: the best estimate, and what would settle it."""
    made = full()
    assert made.curve is not None
    doubt = Verdict("plateau_not_reached", "note", "1 level past the knee, 2 are needed")
    hinge, plateau = Value(16.1, (11.0, 28.0)), Value(1841.0, (1702.0, None))
    curve = msgspec.structs.replace(
        made.curve,
        state=PROVISIONAL,
        reasons=["1 level past the knee, 2 are needed"],
        settle=Settle([16, 23, 32], 40.0),
        hinge_concurrency=hinge,
        plateau_tokens_per_s=plateau,
        plateau_reached=False,
        line=line(1, 24),
        verdicts=[doubt],
    )
    levels = [level(c, noise) for c, noise in zip((1, 2, 4, 8, 16, 24), NOISE, strict=False)]
    measured: dict[int | None, float] = {x.concurrency or 0: x.output_tokens_per_s.mean or 0.0 for x in levels}
    return msgspec.structs.replace(
        made,
        verdicts=[],
        knee_concurrency=16.1,
        knee=Headline("hinge", PROVISIONAL, 16.1, (11.0, 28.0)),
        levels=levels,
        curve=curve,
        knees=Knees(hinge=hinge),
        prediction=prediction((1, 2, 4, 8, 16, 24), measured),
        cost=None,
    )


def constant() -> Summary:
    """A server that handles one request at a time: throughput is the same at every level."""
    made = full()
    assert made.curve is not None
    hinge, plateau = Value(1.01, (0.97, 1.04)), Value(150.2, (149.0, 151.3))
    curve = msgspec.structs.replace(
        made.curve,
        hinge_concurrency=hinge,
        plateau_tokens_per_s=plateau,
        single_stream_tokens_per_s=Value(149.1, (147.0, 151.0)),
        line=line(1, 16, lambda _: 150.2),
    )
    levels = [
        level(c, output_tokens_per_s=Estimate(150.2 * (1 + noise), (148.0, 152.0)))
        for c, noise in zip((1, 2, 4, 8, 16), NOISE, strict=False)
    ]
    return msgspec.structs.replace(
        made,
        verdicts=[Verdict("server_version_unknown", "note", "the server publishes no version")],
        knee_concurrency=1.01,
        knee=Headline("hinge", FOUND, 1.01, (0.97, 1.04)),
        levels=levels,
        curve=curve,
        knees=Knees(hinge=hinge),
        prediction=None,
        cost=None,
    )


SITUATIONS = {
    "full": full,
    "provisional": provisional,
    "simulated": simulated,
    "constant": constant,
    "interrupted": interrupted,
    "hollow": hollow,
}


def stored(folder: Path) -> Path:
    """A result folder of the whole summary, whose requests were taken out."""
    folder.mkdir()
    write_json(folder / "manifest.json", MANIFEST)
    write_json(folder / "summary.json", full())
    return folder
