"""The tables of several replicas: each one at each level, and those that were lost."""

from __future__ import annotations

from collections.abc import Callable

from harness.data.summary import LossPhase, NodeLoss, ReplicaSummary, Summary
from harness.report import document as doc
from harness.report.format import MISSING, ms, number, percent, plain
from harness.report.headline import unit_of
from harness.report.workload import loads

_PHASES = "before → during → after the loss; TTFT is that of the replicas that were left"


def sections(summary: Summary) -> list[doc.Section]:
    """Its tables; empty ones, which are not shown, for a run against one server."""
    return [_replicas(summary), _losses(summary)]


def _replicas(summary: Summary) -> doc.Section:
    """A row for each replica at each level; times in milliseconds."""
    rows = [(level, url, each) for level in summary.levels for url, each in (level.replicas or {}).items()]
    if not rows:
        return doc.Section()

    def column(head: str, text: Callable[[ReplicaSummary], str]) -> doc.Column:
        return doc.Column(head, [text(each) for _, _, each in rows])

    columns = [
        loads(summary, [level for level, _, _ in rows]),
        doc.Column("replica", [plain(url) for _, url, _ in rows], words=True),
        column("requests", lambda x: number(x.requests)),
        column("errors", lambda x: number(x.errors)),
        column("in\nflight", lambda x: number(x.in_flight)),
        column("share", lambda x: percent(x.in_flight_share)),
        column("output\ntok/s", lambda x: number(x.output_tokens_per_s.mean)),
        column("TTFT ms\np50", lambda x: ms(x.ttft_s.p50)),
        column("TTFT ms\np99", lambda x: ms(x.ttft_s.p99)),
        column("E2E ms\np50", lambda x: ms(x.e2e_s.p50)),
    ]
    return doc.Section("Replicas", columns=doc.shown(columns))


def _losses(summary: Summary) -> doc.Section:
    """A row for each loss; times in seconds but for TTFT."""
    rows, per_s = summary.node_losses or [], unit_of(summary).per_s.replace(" ", "\n")
    if not rows:
        return doc.Section()

    def column(head: str, text: Callable[[NodeLoss], str], *, words: bool = False) -> doc.Column:
        return doc.Column(head, [text(each) for each in rows], words=words)

    columns = [
        column("replica", lambda x: plain(x.url), words=True),
        column("what", lambda x: plain(x.kind), words=True),
        column("at s", lambda x: number(x.start_s)),
        column("errors", lambda x: number(x.errors)),
        column("within s", lambda x: number(x.errors_s)),
        column("recovery\ns", lambda x: number(x.recovery_s)),
        column(per_s, lambda x: _phases(x, lambda y: number(y.output_tokens_per_s)), words=True),
        column("TTFT ms\nmean", lambda x: _phases(x, lambda y: ms(y.survivors_ttft_s.mean)), words=True),
        column("headroom", lambda x: {True: "held", False: "not held", None: MISSING}[x.headroom_held], words=True),
    ]
    return doc.Section("Lost replicas", columns=doc.shown(columns), note=_PHASES)


def _phases(loss: NodeLoss, figure: Callable[[LossPhase], str]) -> str:
    phases = (loss.before, loss.during, loss.after)
    return " → ".join(MISSING if phase is None else figure(phase) for phase in phases)
