"""The APIs that can be measured and simulated, by the names that `--api` takes; one module each. Pure."""

from __future__ import annotations

from harness.dialects.chat import CHAT
from harness.dialects.completions import COMPLETIONS
from harness.dialects.dialect import Dialect

DIALECTS: dict[str, Dialect] = {"chat": CHAT, "completions": COMPLETIONS}
