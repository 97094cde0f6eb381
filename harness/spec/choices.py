"""The words that a field may be, for scenarios and options alike; nothing heavy is imported, so that --help is fast."""

from __future__ import annotations

from typing import Literal

Balance = Literal["round-robin", "least-in-flight", "session"]
Transport = Literal["socket", "httpx"]
Start = Literal["staggered", "burst", "batch"]  # batch: all at once, and again when all are over
Phase = Literal["prefill", "decode"]
ROUND_ROBIN: Balance = "round-robin"
LEAST_IN_FLIGHT: Balance = "least-in-flight"
SESSION: Balance = "session"
# Kinds of errors that say that a replica does not serve; what it refuses (4xx) is none of them.
LOST = frozenset(("refused", "connect", "reset", "truncated", "tls", "protocol", "client_deadline", "http_5xx"))
RANKED = ("rerank", "tei-rerank", "score")  # APIs whose texts are compared with a query
PREFILL_ONLY = ("embeddings", *RANKED)  # APIs that decode nothing
APIS = (
    "chat", "completions", "responses", "anthropic", "triton", "tgi", "llama-cpp", "ollama", *PREFILL_ONLY,
)  # fmt: skip  # the names in harness.dialects.DIALECTS
