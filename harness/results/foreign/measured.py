"""A result of another tool as plain data: seconds and tokens per second, None where its file does not say."""

from __future__ import annotations

import msgspec

WHOLE_RUN = "throughput is over the whole run, its beginning and end included"
NO_ERROR = "no error of its own: one figure a level"
NO_SERVER = "it names no GPU, precision or server setting"


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of seconds, as far as it is given."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class ForeignLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One load: closed loop by `concurrency`, open loop by `rate`; neither where the file names no load."""

    concurrency: float | None = None
    rate: float | None = None  # requests per second that were to be sent
    in_flight: float | None = None  # mean, as the tool counted it, or the most that were possible
    output_tokens_per_s: float | None = None
    se: float | None = None  # one standard error of it
    se_assumed: bool = False  # by the number of requests: a weight
    valid: bool = True  # as a point of a curve
    in_flight_ok: bool = True  # as many as were requested
    requests_per_s: float | None = None
    requests: int | None = None  # that were answered
    failed: int | None = None  # besides these
    input_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    ttft_s: Latency = Latency()
    itl_s: Latency = Latency()  # gaps between chunks, which are tokens where each chunk carries one
    tpot_s: Latency = Latency()  # a token after the first, means of requests
    itl_mean_s: float | None = None  # a token after the first, over all of them
    e2e_s: Latency = Latency()


class ForeignResult(msgspec.Struct, frozen=True, kw_only=True):
    """All levels of a file. Texts in it come from outside."""

    source: str  # the tool
    levels: list[ForeignLevel]
    simulated: bool = False  # no GPU was measured
    model: str | None = None
    engine: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    lacks: tuple[str, ...] = ()  # what the file cannot support


SHARED = ("source", "simulated", "model", "engine", "gpu", "gpus")  # facts that all levels of one result have alike


def in_words(fact: str | int) -> str:
    """One of these facts for people.

    >>> in_words(True), in_words(1), in_words("vllm")
    ('a simulated server', '1 GPU', 'vllm')
    """
    if isinstance(fact, bool):
        return "a simulated server" if fact else "a real one"
    return f"{fact} GPU{'s' if fact != 1 else ''}" if isinstance(fact, int) else fact
