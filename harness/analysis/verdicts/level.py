"""Every verdict on one level, from its summary and further evidence of its records."""

from __future__ import annotations

import msgspec

from harness.analysis.conditions import Conditions
from harness.analysis.verdicts import client, server, tokens, window
from harness.analysis.window import Backlog, Little
from harness.data.judgement import Verdict, rank
from harness.data.record import Level, LevelNote
from harness.data.summary import LevelSummary


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a level's records that its summary does not contain."""

    little: Little
    backlog: Backlog | None  # of an open loop
    drift: float | None  # share of its mean by which throughput moved over the window; None where that is chance
    late_reads: Verdict | None
    events_at_once: float | None  # that the server sends; None: one
    gaps: int  # between chunks
    median_lag_s: float | None
    hung: int  # requests in flight that got nothing
    silence_s: float | None  # without a token, though answers streamed
    usage_tokens: float  # output tokens of the requests whose usage the server counted


def of_level(s: LevelSummary, level: Level, conditions: Conditions, seen: Evidence) -> list[Verdict]:
    """Every verdict on one level, the gravest first."""
    rising = seen.backlog is not None and seen.backlog.rising
    counted = LevelNote.COUNTED in level.notes
    found = [
        server.errors_above_1_percent(s),
        client.client_limited(s, s.client),
        client.client_busy(s, s.client, conditions.ceiling_is_lower_bound),
        None if conditions.pauses or counted else client.in_flight_low(s),
        client.schedule_not_kept(s, level, conditions.traffic, seen.median_lag_s),
        server.unstable(s, seen.backlog),
        None if rising else window.little_mismatch(s, seen.little),
        server.stalled(s, level.notes),
        server.hung(s, seen.hung),
        server.silence(s, seen.silence_s),
        window.not_settled(s, level.notes),
        window.not_precise(s, level.notes, conditions.precision, seen.drift),
        window.cut_short(s, level.notes),
        server.gpu_throttled(s),
        server.engines_imbalanced(s),
        None if rising else window.window_too_short(s),
        window.fit_error_assumed(s),
        tokens.unplaced_tokens(s, seen.usage_tokens),
        tokens.output_length_off(s, conditions.output_tokens),
        tokens.input_length_off(s, level.input_tokens or conditions.input_tokens),
        tokens.prefix_cache_hits(s, conditions.template_tokens, conditions.expected_hit_rate),
        tokens.token_counts_disagree(s),
        tokens.itl_chunked(s),
        server.server_lumps(s, seen.events_at_once),
        server.late_end(s),
        seen.late_reads,
        window.too_few_steps(s, seen.gaps),
        server.gpu_power_capped(s),
        None if rising else window.too_few_samples(s),
        window.transient_unchecked(s, level.notes),
        window.by_count(s, level.notes),
    ]
    return sorted(filter(None, found), key=rank)
