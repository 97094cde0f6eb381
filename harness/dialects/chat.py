"""Chat completions: messages in, deltas out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from harness.dialects.body import Body, PromptEncoder, Tools
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect, Server, Wording
from harness.workload.request import Message


def _texts(body: Body) -> list[str]:
    if not body.messages:
        raise ValueError("messages must be a list with at least one message")
    texts = []
    for message in body.messages:
        content = message.content or ""
        texts += [content] if isinstance(content, str) else [part.text for part in content]
    return texts


def _prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": messages}
    return fields | {"tools": tools} if tools else fields


def _choice(text: str, reasoning: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"message": message | {"reasoning": reasoning} if reasoning else message}


CHAT = Dialect(
    path="/chat/completions",
    encoder=partial(PromptEncoder, _prompt),
    decoder=StreamDecoder,
    server=Server(
        texts=_texts,
        template=True,
        output_tokens=None,
        wording=Wording(
            id="chatcmpl-",
            event="chat.completion.chunk",
            whole="chat.completion",
            opening=b'"delta":{"role":"assistant","content":""}',
            token=b'"delta":{"content":"%s"}',
            reasoning=b'"delta":{"reasoning":"%s"}',
            choice=_choice,
        ),
    ),
)
