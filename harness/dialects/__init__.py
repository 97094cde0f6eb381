"""The APIs that can be measured and simulated, by the names that `--api` takes; one module each. Pure."""

from __future__ import annotations

from harness.dialects.anthropic import ANTHROPIC
from harness.dialects.chat import CHAT
from harness.dialects.completions import COMPLETIONS
from harness.dialects.dialect import Dialect
from harness.dialects.llama_cpp import LLAMA_CPP
from harness.dialects.ollama import OLLAMA
from harness.dialects.prefill import EMBEDDINGS, RERANK, SCORE, TEI_RERANK
from harness.dialects.responses import RESPONSES
from harness.dialects.tgi import TGI
from harness.dialects.triton import TRITON

DIALECTS: dict[str, Dialect] = {  # a path that ends like another's stands before it
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "triton": TRITON,
    "tgi": TGI,
    "llama-cpp": LLAMA_CPP,
    "ollama": OLLAMA,
    "embeddings": EMBEDDINGS,
    "rerank": RERANK,
    "tei-rerank": TEI_RERANK,
    "score": SCORE,
}
