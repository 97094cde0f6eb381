"""`knee plan`: replicas and cost for a demand, from a result folder."""

from __future__ import annotations

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
    from harness.decide.plan.question import Demand, Prices, Question, Reserve

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
    option("--spare", type=click.IntRange(0, 10_000), metavar="K", help="Replicas that may be down at the peak (N+K)."),
)
@under(
    "Money",
    option("--price", metavar="USD", help="Per GPU and hour; default as recorded."),
    option("--gpus", metavar="N", help="GPUs of one replica; default as recorded."),
    option("--cold-start", metavar="TIME", help="Of a replica; default as `knee stacks` measured it."),
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
    return Reserve(utilization=UTILIZATION if utilization is None else utilization, spare=flags["spare"])


def _prices(flags: Mapping[str, Any]) -> Prices:
    from harness.decide.plan.question import Prices

    return Prices(
        gpu_hour=_read(flags, "price", _amount),
        gpus=_above(flags, "gpus"),
        cold_start_s=_read(flags, "cold_start", units.seconds),
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
