"""Under what the levels of a run were measured, as far as that bears on their figures and verdicts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from harness.spec.traffic import Traffic
from harness.spec.work import Unit


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What was requested of a level and what served it; by default nothing is known."""

    unit: Unit = Unit.OUTPUT_TOKENS  # what throughput counts
    inputs: int = 1  # documents of a request
    gpus: int | None = None
    replicas: int = 1  # engines that serve side by side
    slo: Mapping[str, float] = {}  # seconds a request by figure: ttft, ttfat, tpot or itl, icl (its stall), e2e
    input_tokens: float | None = None  # a request, as requested
    template_tokens: float = 0.0  # of these, that every prompt begins with
    output_tokens: float | None = None  # a request, as requested
    streams: bool = True  # whether answers are to come piece by piece
    expected_hit_rate: float = 0.0  # share of the prompt tokens that a prefix cache is to serve, as requested
    images: int = 0  # in each request
    image_bytes: int = 0  # of these together
    pauses: bool = False  # slots rest by request: they think, or wait for others of their batch or task
    counted: bool = False  # a number of requests was asked for, all of them at one load
    precision: float | None = None  # half-width at which a window might end; None: it had a length of its own
    ceiling: float | None = None  # events per second that the load generator can process
    ceiling_is_lower_bound: bool = False
    traffic: Traffic = Traffic()  # of an open loop
