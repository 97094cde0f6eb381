"""A hosted endpoint's quota: where its limit, and not the server's speed, sets what is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.data.judgement import Code, Verdict, doubt
from harness.data.summary import FOUND, PROVISIONAL, Curve, LevelSummary

USED_UP = 0.02  # of a quota, that is left when it counts as used up


def quota_limited(s: LevelSummary, left: Mapping[str, float]) -> Verdict | None:
    """`left`: the least share of each quota that was left in the window, by what it counts (requests, tokens)."""
    refused = s.errors_by_type.get("http_429", 0)
    reasons = [f"{refused} of {s.requests} requests were refused with 429"] if refused else []
    reasons += [f"{share:.0%} of the quota of {what} was left" for what, share in left.items() if share <= USED_UP]
    if not reasons:
        return None
    return doubt(
        Code.QUOTA_LIMITED,
        f"{' and '.join(reasons)}: the quota sets what was measured here, not the server",
        "stay below the quota with --max-rps or fewer levels, or ask for a higher one",
        s.load,
    )


def quota_plateau(fitted: Curve | None, levels: Sequence[LevelSummary]) -> Verdict | None:
    """A plateau of which a level is limited by the quota: it is not the server's."""
    hinge = fitted.hinge_concurrency.value if fitted and fitted.state in (FOUND, PROVISIONAL) else None
    if hinge is None:
        return None
    limited = [s for s in levels if any(verdict.code == Code.QUOTA_LIMITED for verdict in s.verdicts)]
    above = [s.concurrency for s in limited if s.concurrency is not None and s.concurrency >= hinge]
    if not above:
        return None
    return doubt(
        Code.QUOTA_LIMITED,
        f"throughput stops rising at {hinge:.4g} in flight, and the quota was used up at {min(above)}: the knee is the "
        "quota's, not the server's",
        "ask for a higher quota, or read the levels below the knee alone",
    )
