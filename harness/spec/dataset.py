"""A scenario's table [workload.dataset]: the file of requests that a run sends, and what was found in it."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.spec import reuse
from harness.spec.bounds import Must
from harness.spec.reuse import Pause


class DatasetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requests from a file, in its order, and again from the first. What is below the line a run fills in."""

    path: str  # a file of one of the formats of `workload.dataset`, or a result folder
    format: str | None = None  # of the file; None: recognised by its contents
    skip_broken: bool = False  # leave broken rows out, and count them
    sessions: bool = False  # a session's rows are sent one after the other; else each row by itself
    history: Literal["live", "scripted"] = "live"  # of a session: the server's own answers, or the recorded ones
    think: Pause = 0.0  # of a session, before a row whose file says no pause
    # ---
    requests: int | None = None
    skipped: int = 0
    input_tokens: float | None = None  # mean of its prompts
    output_tokens: float | None = None  # mean of its answers


def check(spec: DatasetSpec, must: Must, place: str) -> None:
    """Refuse what sessions have where none are asked for, and a pause that is none."""
    usual = DatasetSpec(path="")
    for key in ("history", "think"):
        asked = spec.sessions or getattr(spec, key) == getattr(usual, key)
        must(asked, f"workload.dataset.{key}", "rows are sent by themselves", "add sessions = true")
    reuse.pauses(spec.think, f"{place}: $.workload.dataset.think")
