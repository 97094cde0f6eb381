"""The words that a field of a scenario may be, for the scenario and for its options; they import nothing heavy."""

from __future__ import annotations

from typing import Literal

Balance = Literal["round-robin", "least-in-flight", "session"]
Transport = Literal["socket", "httpx"]
Start = Literal["staggered", "burst", "batch"]  # batch: all at once, and again when all are over
Phase = Literal["prefill", "decode"]
ROUND_ROBIN: Balance = "round-robin"
LEAST_IN_FLIGHT: Balance = "least-in-flight"
SESSION: Balance = "session"
