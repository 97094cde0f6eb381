"""`knee plan`: replicas and cost for a demand, from a result folder."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base import units
from harness.base.errors import HarnessError
from harness.cli import output
from harness.cli.grouped import Grouped, flag_of, option, under

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.decide.plan.plan import Plan
    from harness.decide.plan.question import Demand, Forecast, Prices, Question, Reserve

FILES = ("plan.json", "plan.md", "alerts.yml")

_MOST_HEADROOM = 10.0  # above the peak: more is a percentage that lacks its sign


@click.command(cls=Grouped)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@under(
    "Demand",
    option("--rps", metavar="R", help="Requests per second at the peak."),
    option("--users", metavar="N", help="Users at the peak, in place of --rps; with --think-time."),
    option("--think-time", metavar="TIME", help="Pause of a user between an answer and the next question."),
    option(
        "--documents-per-s", "--judgments-per-s", metavar="R", help="Documents per second, where nothing is decoded."
    ),
    option("--traffic", metavar="SHAPE|FILE", help="A day: wave(period=24h,low=5,high=50), series(…), or a CSV file."),
    option(
        "--offline-tokens", metavar="N", help="A batch of so many output tokens, like 10e9 or 10B; with --deadline."
    ),
    option("--offline-documents", metavar="N", help="A batch of so many documents; with --deadline."),
    option("--deadline", metavar="TIME", help="Of a batch, like 8h."),
    option("--input-tokens", metavar="N", help="Mean prompt length where it is not the measured one."),
    option("--output-tokens", metavar="N", help="Mean answer length, likewise."),
    option("--long-input", metavar="p99=N,…", help="Prompt lengths at percentiles."),
    option("--long-output", metavar="p99=N,…", help="Answer lengths at percentiles."),
)
@under(
    "Operating point",
    option("--by", type=click.Choice(["slo", "cost", "knee"]), help="Default slo where there is one, else knee."),
    option("--slo", metavar="NAME=TIME,…", help="Limits, like ttft_p99=2s, in place of the run's and its classes'."),
)
@under(
    "Reserve",
    option("--utilization", metavar="SHARE", help="Of the operating point at the peak; default 70%."),
    option("--headroom", metavar="SHARE", help="Above the peak, in place of --utilization: 43% is 1/0.7 - 1."),
    option("--redundancy", metavar="FACTOR", help="Times the replicas, like 1.25."),
    option("--spare", type=click.IntRange(0, 10_000), metavar="K", help="Replicas that may be down at the peak (N+K)."),
    option("--availability", metavar="SHARE", help="Share of the time that enough replicas are up, like 99.9%."),
    option("--replica-availability", metavar="SHARE", help="Share of the time that one replica is up."),
)
@under(
    "Money and energy",
    option("--price", metavar="USD", help="Per GPU and hour; default as recorded."),
    option("--gpus", metavar="N", help="GPUs of one replica; default as recorded."),
    option("--reserved-price", metavar="USD", help="Per GPU and hour, for the replicas that always run."),
    option("--spot-price", metavar="USD", help="Per GPU and hour; with --spot-interruptions."),
    option("--spot-interruptions", metavar="RATE", help="Of one replica per hour, like 5%."),
    option("--monthly", metavar="NAME=USD,…", help="Other costs of a month, like storage=500,network=1000."),
    option("--egress-price", metavar="USD", help="Per GB of answers."),
    option("--electricity", metavar="USD", help="Per kWh."),
    option("--carbon", metavar="GRAMS", help="CO2 per kWh."),
    option("--cold-start", metavar="TIME", help="Of a replica; default as `knee stacks` measured it."),
)
@under(
    "Outlook",
    option("--growth", metavar="SHARE", help="Of the demand, per month."),
    option("--months", type=click.IntRange(1, 120), default=12, help="Of --growth; default 12."),
    option("--speedup", metavar="FACTOR", help="Of an optimisation; with --effort."),
    option("--effort", metavar="USD", help="What the optimisation costs."),
    option("--reference", is_flag=True, help="Also where the figures lie in widely quoted tables."),
)
@under(
    "Output",
    option("--out", metavar="DIR", help="Write plan.json, plan.md and the Prometheus rules alerts.yml there."),
    option("--json", "as_json", is_flag=True, help="Print plan.json on stdout."),
    option("--quiet", is_flag=True, help="No table."),
)
def plan(folder: str, out: str | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """How many replicas a demand needs, and what they cost.

    DIR is the result folder of a run on one replica, or on several that are alike. Each replica is planned at a load
    that was measured: never beyond the curve.

    Exit status 99: no measured load meets the SLO. 3: too few requests to decide it.
    """
    from harness.decide.plan import capacity, plan, replicas

    question = _question(flags)  # before the work that takes time
    shape = replicas.read_traffic(flags["traffic"]) if flags["traffic"] is not None else None
    limits = units.slo(flags["slo"]) if flags["slo"] is not None else None
    made = plan.make(capacity.read(folder, limits), question, shape)
    _publish(made, out, as_json=as_json, quiet=quiet)
    sys.exit(made.exit_status)


def _question(flags: Mapping[str, Any]) -> Question:
    from harness.decide.plan import question

    return question.Question(
        demand=_demand(flags),
        by=flags["by"],
        reserve=_reserve(flags),
        prices=_prices(flags),
        outlook=_outlook(flags),
        reference=flags["reference"],
    )


def _demand(flags: Mapping[str, Any]) -> Demand:
    from harness.decide.plan.question import Demand

    return Demand(
        requests_per_s=_above(flags, "rps"),
        users=_above(flags, "users"),
        documents_per_s=_above(flags, "documents_per_s"),
        think_s=_read(flags, "think_time", units.seconds),
        traffic=flags["traffic"],
        offline_tokens=_above(flags, "offline_tokens"),
        offline_documents=_above(flags, "offline_documents"),
        deadline_s=_above(flags, "deadline", units.seconds),
        input_tokens=_above(flags, "input_tokens"),
        output_tokens=_above(flags, "output_tokens"),
        long_input=_percentiles(flags, "long_input"),
        long_output=_percentiles(flags, "long_output"),
    )


def _reserve(flags: Mapping[str, Any]) -> Reserve:
    from harness.decide.plan.question import UTILIZATION, Reserve

    utilization, headroom = _read(flags, "utilization", units.portion), _read(flags, "headroom", units.share)
    if utilization is not None and headroom is not None:
        raise HarnessError("--utilization says the same", place="--headroom", way_out="give one of them")
    if headroom is not None and headroom > _MOST_HEADROOM:
        fact = f"a headroom of {headroom:,.0%}"
        raise HarnessError(fact, place="--headroom", way_out=f"a share of the peak: write {headroom:g}%")
    if headroom is not None:
        utilization = 1 / (1 + headroom)
    redundancy = _above(flags, "redundancy")
    if redundancy is not None and redundancy < 1:
        raise HarnessError("a redundancy factor is 1 or more", place="--redundancy", way_out="write it like 1.25")
    available = [_read(flags, name, units.portion) for name in ("availability", "replica_availability")]
    if 1.0 in available:
        raise HarnessError("nothing is up all the time", place="--availability", way_out="write it like 99.9%")
    return Reserve(
        utilization=UTILIZATION if utilization is None else utilization,
        redundancy=redundancy,
        spare=flags["spare"],
        availability=available[0],
        replica_availability=available[1],
    )


def _prices(flags: Mapping[str, Any]) -> Prices:
    from harness.decide.plan.question import Prices

    if (flags["spot_price"] is None) != (flags["spot_interruptions"] is None):
        raise HarnessError(
            "spot replicas have a price and interruptions",
            place="--spot-price",
            way_out="give --spot-price and --spot-interruptions together",
        )
    return Prices(
        gpu_hour=_read(flags, "price", _amount),
        gpus=_above(flags, "gpus"),
        reserved_gpu_hour=_read(flags, "reserved_price", _amount),
        spot_gpu_hour=_read(flags, "spot_price", _amount),
        spot_interruptions_per_h=_read(flags, "spot_interruptions", units.share),
        monthly=_pairs(flags, "monthly", "storage=500,network=1000"),
        egress_gb=_read(flags, "egress_price", _amount),
        kwh=_read(flags, "electricity", _amount),
        carbon_g_kwh=_read(flags, "carbon", _amount),
        cold_start_s=_read(flags, "cold_start", units.seconds),
    )


def _outlook(flags: Mapping[str, Any]) -> Forecast:
    from harness.decide.plan.question import Forecast

    return Forecast(
        growth=_read(flags, "growth", units.share),
        months=flags["months"],
        speedup=_above(flags, "speedup"),
        effort_usd=_read(flags, "effort", _amount),
    )


def _amount(text: str, place: str) -> float:
    """Return a number from 0 on, also like 10e9 or 10B.

    >>> _amount("10e9", ""), _amount("2.5k", "")
    (10000000000.0, 2500.0)
    """
    try:
        value = float(text)
    except ValueError:
        return units.number(text, place)
    if not 0 <= value < units.BEYOND:
        raise HarnessError(
            f"{text[:40]!r} is not a number from 0 on", place=place, way_out="write it like '50' or '1.5k'"
        )
    return value


def _read(flags: Mapping[str, Any], name: str, read: Callable[[str, str], float]) -> float | None:
    return None if flags[name] is None else read(flags[name], flag_of(name))


def _above(flags: Mapping[str, Any], name: str, read: Callable[[str, str], float] = _amount) -> float | None:
    """Return a number above 0, and above what no server has."""
    value = _read(flags, name, read)
    if value is not None and not value > units.BEYOND**-1:
        raise HarnessError(f"{flags[name][:40]!r} is not above 0", place=flag_of(name), way_out="give more")
    return value


def _pairs(flags: Mapping[str, Any], name: str, example: str) -> dict[str, float]:
    """Return amounts by their names, each once."""
    place, found = flag_of(name), {}
    for part in filter(None, (flags[name] or "").split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or key in found:
            fact = f"{part[:40]!r} is no new name=value"
            raise HarnessError(fact, place=place, way_out=f"write it like {example}")
        found[key] = _amount(value, place)
    return found


def _percentiles(flags: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return lengths by their percentiles, like p99."""
    found = _pairs(flags, name, "p95=2k,p99=8k")
    for key, tokens in found.items():
        known = key.startswith("p") and key[1:] in units.PERCENTILES
        if not known or not 1 <= tokens <= units.MOST_TOKENS or math.isnan(tokens):
            fact = f"{key[:20]}={tokens:g} is no percentile of a length"
            raise HarnessError(fact, place=flag_of(name), way_out="write it like p95=2k,p99=8k")
    return found


def _publish(made: Plan, out: str | None, *, as_json: bool, quiet: bool) -> None:
    """Write the files where a place for them is given, and print the answer."""
    from harness.base import files
    from harness.report import markdown
    from harness.report import plan as planning

    document = planning.report(made)
    paths: list[tuple[str, str | Path]] = []
    if out is not None:
        folder = Path(out)
        files.make_folder(folder, way_out="choose another --out")
        files.must_be_files(folder, FILES)
        rules = made.thresholds.rules if made.thresholds else ""
        contents = (files.json_text(made), markdown.render(document), rules)
        for name, content in zip(FILES, contents, strict=True):
            if content:
                files.write(folder / name, content)
                paths.append((name, folder / name))
    output.show(document, paths, made, as_json=as_json, quiet=quiet)
