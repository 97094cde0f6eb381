"""Why requests failed, a line for each kind: how many, at which loads, the server's own words, and the way out."""

from __future__ import annotations

from collections import Counter, defaultdict

from harness.analysis.rules.observed import said
from harness.data.summary import Summary
from harness.report import document as doc
from harness.report.format import loads, plain
from harness.report.headline import is_open

_WORDS = 120  # characters of what the server said
_SERVER = "see the server's log"
_WAYS_OUT = {
    "http_429": "--max-rps R keeps its quota",
    "http_4xx": "send what it takes: --api-key-env, --model, --omit FIELD, --extra-body",
    "refused": "is the server still there? --wait TIME waits for it",
    "connect": "is the server still there? --wait TIME waits for it",
    "client_deadline": "--request-timeout TIME waits for longer",
    "empty_response": f"{_SERVER}: it answers without a token",
    "truncated": f"{_SERVER}, and that of any proxy before it",
    "oom": "lower the load or the lengths",
}


def section(summary: Summary) -> doc.Section:
    """Return a line for each kind of failure, the commonest first; a section without lines where nothing failed."""
    counts: Counter[str] = Counter()
    failed_at: dict[str, set[float]] = defaultdict(set)
    words: dict[str, str] = {}
    for level in summary.levels:
        for kind, count in level.errors_by_type.items():
            counts[kind] += count
            if level.load is not None:
                failed_at[kind].add(level.load)
        for verdict in level.verdicts:
            if said.made(verdict):
                kind = verdict.code.removeprefix(f"{said.code}_")
                words.setdefault(kind, verdict.message.removeprefix(f"{kind}: "))
    open_loop = is_open(summary)
    lines = []
    for kind, count in counts.most_common():
        where, way_out = loads(open_loop, sorted(failed_at[kind])), _WAYS_OUT.get(kind, _SERVER)
        quoted = plain(words.get(kind, ""))[:_WORDS].rstrip()
        lines.append(f"{count} × {kind} at {where}{f': {quoted}' if quoted else ''} ({way_out})")
    return doc.Section("Failed requests", lines=lines) if lines else doc.Section()
