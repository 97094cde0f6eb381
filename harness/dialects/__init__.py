"""The APIs that can be measured and simulated, by the names that `--api` takes; one module each. Pure."""

from __future__ import annotations

from harness.dialects.chat import CHAT
from harness.dialects.completions import COMPLETIONS
from harness.dialects.dialect import Dialect
from harness.dialects.prefill import EMBEDDINGS, RERANK, SCORE, TEI_RERANK

DIALECTS: dict[str, Dialect] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "embeddings": EMBEDDINGS,
    "rerank": RERANK,
    "tei-rerank": TEI_RERANK,
    "score": SCORE,
}
