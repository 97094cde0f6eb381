"""Traffic as services log it: TraceLab's rounds of coding agents, and what Amazon SageMaker captures of an endpoint.

A round of TraceLab (github.com/uw-syfi/TraceLab, README.md) has lengths and the times of what came in and out. Its
prompt begins with all of the prompt before it, where it is no shorter; of one that was compacted, with what the
provider's cache still served (docs/prompt_cache_accounting.md there). Blocks say so here, in numbers made up by
session. Which session is an agent of another is not recorded, and answers are not known to come again: reasoning does
not. A capture (docs.aws.amazon.com/sagemaker, "Capture data from real-time endpoint") has the request's body, and the
time in whole seconds.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from harness.base import decoding
from harness.workload.dataset import BLOCK, PromptTokens, Reader, Row, Tokens, seconds
from harness.workload.dataset.plain import record_type
from harness.workload.dataset.plain import rows as rows_of

_INPUTS, _OUTPUTS = ("user_message", "tool_result"), ("reasoning", "text", "tool_call")


class _Event(msgspec.Struct, frozen=True):
    event_type: str
    timestamp: datetime | None = None


class Round(msgspec.Struct, frozen=True):
    """A request of TraceLab."""

    session_id: str
    input_tokens_total: PromptTokens
    output_tokens: Tokens
    prefix_tokens: Tokens = 0
    model: str | None = None
    timing_events: list[_Event] = []


class _Rounds:
    """Reads rounds: lengths, times, and each prompt as hash blocks, shared with those of the one before.

    A prompt begins with all of the session's last one; a shorter one with what the provider's cache served.
    """

    def __init__(self) -> None:
        # By session: the tokens of its last prompt, the blocks of all its prompts, the blocks of the last one.
        self._before: dict[str, tuple[int, int, list[int]]] = {}

    def __call__(self, found: Round, place: str) -> Iterator[Row]:
        """Yield a round as a row; raise ValueError without a timestamp."""
        events = [(event.event_type, seconds(event.timestamp)) for event in found.timing_events if event.timestamp]
        if not events:
            raise ValueError("it has no time: no event of it has a timestamp")
        answered = [at for kind, at in events if kind in _OUTPUTS] or [events[-1][1]]
        at_s = max((at for kind, at in events if kind in _INPUTS and at <= min(answered)), default=events[0][1])
        total, (last, count, blocks) = found.input_tokens_total, self._before.get(found.session_id, (0, 0, []))
        kept = min(last, total if total >= last else found.prefix_tokens) // BLOCK
        end = count + -(-total // BLOCK) - kept
        blocks = [*blocks[:kept], *range(count, end)]
        self._before[found.session_id] = total, end, blocks
        yield Row(
            place=place,
            input_tokens=total,
            output_tokens=found.output_tokens,
            at_s=at_s,
            took_s=max(answered) - at_s,
            session=found.session_id,
            hashes=tuple(blocks),
            scope=found.session_id,
            model=found.model or "",
        )


class _Payload(msgspec.Struct, frozen=True):
    data: str
    encoding: str = "JSON"

    def decoded(self) -> bytes:
        if self.encoding not in ("JSON", "BASE64"):
            raise ValueError(f"its body is in {self.encoding[:40]!r}, neither JSON nor BASE64")
        return base64.b64decode(self.data, validate=True) if self.encoding == "BASE64" else self.data.encode()


class _Metadata(msgspec.Struct, frozen=True):
    inference_time: datetime = msgspec.field(name="inferenceTime")


class Capture(msgspec.Struct, frozen=True):
    """A request of SageMaker's, and its answer."""

    payloads: dict[str, _Payload] = msgspec.field(name="captureData")
    event: _Metadata = msgspec.field(name="eventMetadata")


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: PromptTokens | None = None
    completion_tokens: Tokens | None = None


def _captured(capture: Capture, place: str) -> Iterator[Row]:
    """Yield the request of a body, with the lengths that its answer counted."""
    if "endpointInput" not in capture.payloads:
        raise ValueError("it has no endpointInput")
    body = capture.payloads["endpointInput"].decoded()
    usage = _Usage()
    with contextlib.suppress(KeyError, *decoding.WRONG):  # it is not captured, or a stream
        answer = msgspec.json.decode(capture.payloads["endpointOutput"].decoded(), type=dict[str, msgspec.Raw])
        usage = msgspec.json.decode(answer["usage"], type=_Usage)
    request = msgspec.json.decode(body, type=dict[str, Any])
    if isinstance(inner := request.get("parameters"), dict):  # text-generation-inference has them here
        request |= inner
    for row in rows_of(msgspec.convert(request, record_type(), strict=False), place):
        yield msgspec.structs.replace(
            row,
            at_s=seconds(capture.event.inference_time),
            at_ms=None,
            input_tokens=usage.prompt_tokens or row.input_tokens,
            output_tokens=usage.completion_tokens or row.output_tokens,
        )


_ROUND = frozenset({"session_id", "input_tokens_total", "output_tokens", "timing_events"})
_CAPTURE = frozenset({"captureData", "eventMetadata"})
READERS = (
    Reader(name="tracelab", what="a round of TraceLab", keys=(_ROUND,), record=Round, begin=_Rounds, complete=True),
    Reader(name="sagemaker", what="a capture of SageMaker", keys=(_CAPTURE,), record=Capture, rows=_captured,
           complete=True),
)  # fmt: skip
