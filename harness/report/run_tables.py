"""The tables of a run besides that of its levels: classes, sessions, lengths, canaries, checks, drift, replicas.

A table without rows is an empty section, which is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from harness.analysis.checks import SECONDS
from harness.base.units import duration
from harness.data.figures import Figures, Of
from harness.data.levels import (
    CACHED,
    AnswerQuality,
    ClassSummary,
    LevelSummary,
    ReplicaSummary,
    SessionSummary,
    Trend,
)
from harness.data.summary import Check, Lengths, LengthSpread, LossPhase, NodeLoss, Summary
from harness.data.views import Estimate, PoolView, ServerView, Value
from harness.report import document as doc
from harness.report.answer import unit_of
from harness.report.format import MISSING, NO_INTERVAL, interval, joined, label, ms, number, percent, plain, time
from harness.report.levels import declared_columns

_BY_CACHED = f"TTFT ms, prompts cached below {', '.join(f'{each:.0%}' for each in CACHED)}, above"
_LENGTHS = "asked / realised, in tokens"
_CANARIES = (
    "agreement: answers with the words of the first one, unloaded; part after: words that the others begin with alike; "
    "detectable: the smallest share of changed answers that would have been found"
)
_NAMES = {
    "phases": "prefill and decode apart",
    "p99_ttft": "p99 TTFT",
    "kv_cache": "KV use and hits",
    "long_context_tail": "long-context tail",
    "node_loss": "node loss",
}
_UPPER = {"ttft": "TTFT", "e2e": "E2E", "kv": "KV"}
_CHECK_SHARES = ("prefill_fraction", "within", "ttft_over_e2e", "kv_usage", "hit_fraction")
_DRIFT = "change an hour: slope of a line through equal parts of the window; sure: it moved, at 99.99 %"
_PHASES = "before → during → after the loss; TTFT is that of the replicas that were left"

_T = TypeVar("_T")
_Figures = TypeVar("_Figures", bound=Figures)
_Row = TypeVar("_Row")


class _At(NamedTuple, Generic[_T]):
    """Something of a level, with its name where a level has several."""

    level: LevelSummary
    of: _T
    name: str = ""


_Cell: TypeAlias = Callable[[_At[PoolView]], str]


def _table(
    title: str,
    rows: Sequence[_Row],
    heads: Mapping[str, Callable[[_Row], str]],
    note: str = "",
    *,
    words: Sequence[str] = (),
) -> doc.Section:
    """Return a section with a table: heads[heading](row) writes a cell; columns without any cell are left out."""
    columns = [doc.Column(head, [text(row) for row in rows], words=head in words) for head, text in heads.items()]
    return doc.Section(title, columns=doc.shown(columns), note=note) if rows else doc.Section()


def _load(summary: Summary) -> dict[str, Callable[[_At[_T]], str]]:
    """Return the column of the load of each row: concurrency, or in open loop the target rate."""
    return {"target\nreq/s" if summary.open_loop else "C": lambda x: label(x.level)}


def _declared(of: Of, kind: type[_Figures]) -> dict[str, Callable[[_At[_Figures]], str]]:
    """Return {heading: function that writes a cell} for a table of classes or replicas, as their figures declare it."""

    def cell(show: Callable[[Figures], str]) -> Callable[[_At[_Figures]], str]:
        return lambda x: show(x.of)

    return {column.head: cell(show) for column, show in declared_columns(of, kind)}


# ---- requests that differ --------------------------------------------------------------------------------------------


def of_workload(summary: Summary) -> list[doc.Section]:
    """Return the tables of requests that differ."""
    return [_classes(summary), _sessions(summary), _lengths(summary)]


def _classes(summary: Summary) -> doc.Section:
    """Return a row for each class of each level; times in milliseconds."""
    rows = [_At(level, each, plain(name)) for level in summary.levels for name, each in (level.classes or {}).items()]
    heads: dict[str, Callable[[_At[ClassSummary]], str]] = {
        **_load(summary),
        "class": lambda x: x.name,
        **_declared(Of.CLASS, ClassSummary),
    }
    return _table("Classes", rows, heads, words=["class"])


def _sessions(summary: Summary) -> doc.Section:
    """Return the table of sessions, a row a level: how many, how long, cached share and TTFT; times in seconds."""
    rows = [_At(level, level.sessions) for level in summary.levels if level.sessions]
    levels = summary.agents.levels if summary.agents else []
    predicted = {level.concurrency: level.cached_input_fraction for level in levels}
    heads: dict[str, Callable[[_At[SessionSummary]], str]] = {
        **_load(summary),
        "sessions\nin flight": lambda x: number(x.of.in_flight),
        "requests\nin flight": lambda x: number(x.level.in_flight),
        "sessions": lambda x: number(x.of.sessions),
        "completed": lambda x: number(x.of.completed),
        "failed": lambda x: number(x.of.failed),
        "requests\neach": lambda x: number(x.of.requests_mean),
        "sessions/s": lambda x: number(x.of.sessions_per_s),
        "an hour": lambda x: number(3600 * x.of.sessions_per_s),
        "$ each": lambda x: _usd_each(summary, x.of),
        "tok/min\neach": lambda x: number(x.of.tokens_per_minute),
        "idle\nin tools": lambda x: number(x.of.idle),
        "their KV\ntokens": lambda x: number(x.of.idle_tokens),
        "latency s\np50": lambda x: number(x.of.latency_s.p50),
        "latency s\np99": lambda x: number(x.of.latency_s.p99),
        "last token\ns p50": lambda x: number(x.of.last_token_s.p50),
        "cached": lambda x: percent(x.of.cached_fraction.mean) if x.of.cached_fraction else MISSING,
        "cached,\npredicted": lambda x: percent(predicted.get(x.level.concurrency or 0)),
        "cached, turn by turn": lambda x: " ".join(percent(each) for each in x.of.cached_by_turn or ()) or MISSING,
        "TTFT ms, turn by turn": lambda x: " ".join(ms(each) for each in x.of.ttft_by_turn_s or ()) or MISSING,
        _BY_CACHED: lambda x: " ".join(ms(each) for each in x.of.ttft_by_cached_s or ()) or MISSING,
    }
    return _table("Sessions", rows, heads)


def _usd_each(summary: Summary, sessions: SessionSummary) -> str:
    """Return as words what one session costs: the GPUs' price per second over sessions per second."""
    cost = summary.cost
    if cost is None or not cost.usd_per_gpu_hour or not sessions.sessions_per_s:
        return MISSING
    return number(cost.usd_per_gpu_hour * (cost.gpus or 1) / 3600 / sessions.sessions_per_s)


def _lengths(summary: Summary) -> doc.Section:
    """Return a row for the prompts and one for the answers of each class."""
    rows = [
        (f"{plain(each.class_)} {noun}".strip(), lengths)
        for each in (summary.workload.classes if summary.workload else ())
        for noun, lengths in (("prompts", each.input_tokens), ("answers", each.output_tokens))
        if noun == "prompts" or unit_of(summary).decodes
    ]
    heads: dict[str, Callable[[tuple[str, Lengths]], str]] = {
        "lengths": lambda x: x[0],
        "asked": lambda x: plain(x[1].law) if x[1].law else MISSING,
        "mean": lambda x: _side_by_side(x[1], lambda y: y.mean),
        "p10": lambda x: _side_by_side(x[1], lambda y: y.p10),
        "p50": lambda x: _side_by_side(x[1], lambda y: y.p50),
        "p90": lambda x: _side_by_side(x[1], lambda y: y.p90),
        "p99": lambda x: _side_by_side(x[1], lambda y: y.p99),
    }
    return _table("Lengths asked and realised", rows, heads, _LENGTHS, words=["lengths", "asked"])


def _side_by_side(lengths: Lengths, figure: Callable[[LengthSpread], float | None]) -> str:
    requested = number(figure(lengths.asked)) if lengths.asked else MISSING
    return f"{requested} / {number(figure(lengths.realised))}"


# ---- canaries --------------------------------------------------------------------------------------------------------


def canaries(summary: Summary) -> doc.Section:
    """Return the table of the canaries' answers: a row for the unloaded server and one a level; empty without any."""
    unloaded = summary.unloaded_quality
    of_levels = [(label(level), level.quality) for level in summary.levels if level.quality]
    heads: dict[str, Callable[[tuple[str, AnswerQuality]], str]] = {
        "target\nreq/s" if summary.open_loop else "C": lambda x: x[0],
        "answers": lambda x: number(x[1].answers),
        "agreement": lambda x: _share_with_interval(x[1].agreement),
        "part\nafter": lambda x: number(x[1].differs_at),
        "flawed": lambda x: number(sum(x[1].flaws.values())),
        "accuracy": lambda x: _share_with_interval(x[1].accuracy) if x[1].accuracy else MISSING,
        "detectable": lambda x: percent(x[1].detectable),
    }
    return _table("Answers of the canaries", [("unloaded", unloaded), *of_levels] if unloaded else [], heads, _CANARIES)


def _share_with_interval(share: Estimate) -> str:
    if share.mean is None or share.ci95 is None:
        return MISSING
    low, high = share.ci95
    return f"{percent(share.mean)} ({number(100 * low)}–{number(100 * high)})"


# ---- operational checks ----------------------------------------------------------------------------------------------


def operational(summary: Summary) -> doc.Section:
    """Return a row for each check."""
    checks = summary.checks or []
    if not checks:
        return doc.Section()
    columns = [
        doc.Column("check", [_NAMES.get(check.name, plain(check.name)) for check in checks], words=True),
        doc.Column("result", [plain(check.outcome) for check in checks], words=True),
        doc.Column("figures", [_check_figures(check) for check in checks], words=True),
        doc.Column("limit", [_limit(check) for check in checks], words=True),
        doc.Column("at", [number(check.at) for check in checks]),
        doc.Column("remark", [plain(check.message) or MISSING for check in checks], words=True, spare=1),
    ]
    return doc.Section("Operational checks", columns=columns)


def _check_figures(check: Check) -> str:
    """Return a check's figures as words, times and shares with their units; a dash without any."""

    def one(name: str, value: float) -> str:
        words = " ".join(_UPPER.get(word, word) for word in plain(name.removesuffix("_s")).split("_"))
        shown = time(value) if name.endswith("_s") else f"{value:.0%}" if name in _CHECK_SHARES else number(value)
        return f"{words} {shown}"

    return ", ".join(one(name, value) for name, value in check.figures.items()) or MISSING


def _limit(check: Check) -> str:
    source = plain(check.source)
    if check.threshold is None:
        return source or MISSING
    return f"{duration(check.threshold) if check.name in SECONDS else f'{check.threshold:.0%}'} ({source})"


# ---- drift -----------------------------------------------------------------------------------------------------------


def drift(summary: Summary) -> doc.Section:
    """Return a row for each figure of each level; an empty section where every window is shorter than five minutes."""
    per_s = "output tok/s" if unit_of(summary).decodes else unit_of(summary).per_s
    rows = [_At(level, figure, figure[0]) for level in summary.levels for figure in _figures(level, per_s)]
    heads: dict[str, Callable[[_At[tuple[str, float, Trend]]], str]] = {
        **_load(summary),
        "figure": lambda x: x.name,
        "mean": lambda x: number(x.of[2].mean * x.of[1]),
        "change\nan hour": lambda x: number((x.of[2].per_hour.value or 0.0) * x.of[1]),
        "share\nan hour": lambda x: _share(x.of[2].share_per_hour),
        "sure": lambda x: "yes" if x.of[2].sure else "no",
    }
    return _table("Over the window", rows, heads, _DRIFT, words=["figure", "share\nan hour", "sure"])


def _figures(level: LevelSummary, per_s: str) -> list[tuple[str, float, Trend]]:
    """Return (name with its unit, scale to that unit, trend) for each figure whose drift is known at a level."""
    moved = level.drift
    if not moved:
        return []
    named = [
        (per_s, 1.0, moved.throughput),
        ("TTFT p99 ms", 1e3, moved.ttft_p99_s),
        ("KV use %", 100.0, moved.kv_usage),
        ("server memory GB", 1e-9, moved.memory_bytes),
        ("GPU memory GB", 1e-9, moved.gpu_memory_bytes),
    ]
    return [(name, scale, trend) for name, scale, trend in named if trend is not None]


def _share(share: Value | None) -> str:
    """Return a share an hour with its interval, in percent."""
    if share is None:
        return MISSING
    return joined(percent(share.value), interval(share.times(100).ci95) or NO_INTERVAL)


# ---- replicas --------------------------------------------------------------------------------------------------------


def of_replicas(summary: Summary) -> list[doc.Section]:
    """Return the tables of several replicas: each at each level, and those that were lost."""
    return [_replicas(summary), _losses(summary), _pools(summary)]


def _replicas(summary: Summary) -> doc.Section:
    """Return a row for each replica at each level; times in milliseconds."""
    rows = [_At(level, each, plain(url)) for level in summary.levels for url, each in (level.replicas or {}).items()]
    heads: dict[str, Callable[[_At[ReplicaSummary]], str]] = {
        **_load(summary),
        "replica": lambda x: x.name,
        **_declared(Of.REPLICA, ReplicaSummary),
    }
    return _table("Replicas", rows, heads, words=["replica"])


def _pools(summary: Summary) -> doc.Section:
    """Return the table of the pools' servers: a row for each server at each level, by its own metrics."""
    rows = [_At(level, each, plain(name)) for level in summary.levels for name, each in (level.pools or {}).items()]

    def of(figure: Callable[[ServerView], float | None], show: Callable[[float | None], str] = number) -> _Cell:
        return lambda x: show(figure(x.of.server) if x.of.server else None)

    heads: dict[str, _Cell] = {
        **_load(summary),
        "server": lambda x: x.name,
        "running": of(lambda s: s.running),
        "waiting": of(lambda s: s.waiting),
        "KV use": of(lambda s: s.kv_usage, percent),
        "prompt\ntok/s": of(lambda s: s.prompt_tokens_per_s),
        "output\ntok/s": of(lambda s: s.generation_tokens_per_s),
        "prefill ms\nmean": of(lambda s: s.prefill_s.mean if s.prefill_s else None, ms),
        "KV transfer ms\nmean": lambda x: ms(x.of.transfer_s.mean if x.of.transfer_s else None),
        "p99": lambda x: ms(x.of.transfer_s.p99 if x.of.transfer_s else None),
        "MB\nmean": lambda x: number((x.of.transfer_bytes.mean or 0.0) / 1e6 if x.of.transfer_bytes else None),
    }
    return _table("Servers of the pools", rows, heads, words=["server"])


def _losses(summary: Summary) -> doc.Section:
    """Return the table of lost replicas: a row for each loss with errors, recovery time and headroom."""
    per_s = unit_of(summary).per_s.replace(" ", "\n")
    heads: dict[str, Callable[[NodeLoss], str]] = {
        "replica": lambda x: plain(x.url),
        "what": lambda x: plain(x.kind),
        "at s": lambda x: number(x.start_s),
        "errors": lambda x: number(x.errors),
        "within s": lambda x: number(x.errors_s),
        "recovery\ns": lambda x: number(x.recovery_s),
        per_s: lambda x: _phases(x, lambda y: number(y.output_tokens_per_s)),
        "TTFT ms\nmean": lambda x: _phases(x, lambda y: ms(y.survivors_ttft_s.mean)),
        "headroom": lambda x: {True: "held", False: "not held", None: MISSING}[x.headroom_held],
    }
    words = ["replica", "what", per_s, "TTFT ms\nmean", "headroom"]
    return _table("Lost replicas", summary.node_losses or [], heads, _PHASES, words=words)


def _phases(loss: NodeLoss, figure: Callable[[LossPhase], str]) -> str:
    phases = (loss.before, loss.during, loss.after)
    return " → ".join(MISSING if phase is None else figure(phase) for phase in phases)
