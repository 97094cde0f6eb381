"""Whether the tokens sent and received are those requested, and arrived one by one."""

from __future__ import annotations

from harness.data.judgement import Code, Verdict, doubt, note
from harness.data.summary import LevelSummary

TOKENS_PER_CHUNK = 1.05  # above it a chunk's gap is no inter-token latency
CACHED = 0.01  # of the input tokens of random prompts, from which on they were not new to the server


def itl_chunked(s: LevelSummary) -> Verdict | None:
    if s.tokens_per_chunk is None or s.tokens_per_chunk <= TOKENS_PER_CHUNK:
        return None
    return note(
        Code.ITL_CHUNKED,
        f"{s.tokens_per_chunk:.2f} tokens a chunk: ITL percentiles are not given, mean ITL, TPOT and ICL are",
        "read TPOT for the pace and ICL for the stalls",
        s.load,
    )


def unplaced_tokens(s: LevelSummary, output_tokens: float) -> Verdict | None:
    """`output_tokens`: what usage counted for the requests that the unplaced tokens belong to."""
    if not output_tokens or abs(s.unplaced_tokens) <= 0.01 * output_tokens:
        return None
    return doubt(
        Code.UNPLACED_TOKENS,
        f"{s.unplaced_tokens} of {output_tokens:.0f} tokens that the server counted were not seen to arrive "
        f"({s.unplaced_tokens / output_tokens:.1%})",
        "name the tokenizer, or ask for usage in every chunk",
        s.load,
    )


def output_length_off(s: LevelSummary, requested: float | None) -> Verdict | None:
    if not requested or s.output_tokens_mean is None or abs(s.output_tokens_mean / requested - 1) <= 0.10:
        return None
    return doubt(
        Code.OUTPUT_LENGTH_OFF,
        f"{s.output_tokens_mean:.1f} output tokens a request, {requested:.1f} were requested",
        "check that the server honours ignore_eos and max_tokens",
        s.load,
    )


def input_length_off(s: LevelSummary, requested: float | None) -> Verdict | None:
    if not requested or s.input_tokens_mean is None or abs(s.input_tokens_mean / requested - 1) <= 0.10:
        return None
    return note(
        Code.INPUT_LENGTH_OFF,
        f"{s.input_tokens_mean:.1f} input tokens a request by the server's count, {requested:.1f} were requested",
        "name the model's tokenizer; chat templates add some tokens of their own",
        s.load,
    )


def prefix_cache_hits(s: LevelSummary, template_tokens: float = 0.0, expected: float = 0.0) -> Verdict | None:
    """Hits beyond the chat template's tokens, with which every prompt begins, and beyond those that were asked for."""
    common = template_tokens / s.input_tokens_mean if s.input_tokens_mean else 0.0
    if s.cached_input_fraction is None or s.cached_input_fraction < CACHED + common + expected:
        return None
    return doubt(
        Code.PREFIX_CACHE_HITS,
        f"{s.cached_input_fraction:.1%} of the input tokens came from the prefix cache",
        "switch the cache off, or ask for a workload that means to hit it",
        s.load,
    )


def token_counts_disagree(s: LevelSummary) -> Verdict | None:
    if s.server is None or s.abandoned:  # what was given up has no usage, and the server counts its prompts
        return None
    # A prompt counts there when it is computed, and here with its first token: those between may be in either.
    in_transit = (s.in_flight or 0.0) / s.requests if s.requests else 0.0
    ratios = {
        "output": (s.server.generation_tokens_ratio, 0.01),
        "input": (s.server.prompt_tokens_ratio, 0.01 + in_transit),
    }
    off = [
        f"{name} {ratio:.3f}" for name, (ratio, most) in ratios.items() if ratio is not None and abs(ratio - 1) > most
    ]
    if not off:
        return None
    return doubt(
        Code.TOKEN_COUNTS_DISAGREE,
        f"the server's own token counters over ours: {', '.join(off)}",
        "make sure that nobody else uses the server",
        s.load,
    )
