"""Whether more was reached than the hardware can do by its figures."""

from __future__ import annotations

from harness.analysis import explanation
from harness.data.judgement import Code, Verdict, doubt
from harness.data.summary import Gap, Phases


def above_peak(gap: Gap | None, phases: Phases | None) -> Verdict | None:
    """A doubt where more was reached than the hardware can do by its figures, at one request alone or by a probe."""
    mbu, mfu = (gap.mbu, gap.mfu) if gap else (None, None)
    probed = (
        phases.decode.mbu if phases and phases.decode else None,
        phases.prefill.mfu if phases and phases.prefill else None,
    )
    found = explanation.above_peak(mbu or probed[0], mfu or probed[1])
    if not found:
        return None
    return doubt(Code.ABOVE_PEAK, found, "check --gpu and --dtype: the prediction rests on these figures")
