"""Text completions: one prompt in, pieces of text out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from harness.dialects.body import Body, PromptEncoder, Tools
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect, Server, Wording
from harness.workload.request import Message


def _texts(body: Body) -> list[str]:
    """The prompt, or as many words as it has token ids."""
    prompt, texts = body.prompt, list[str]()
    if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        texts = [str(token) for token in prompt]
    elif isinstance(prompt, list) and len(prompt) == 1:
        texts = [str(prompt[0])]
    elif isinstance(prompt, str):
        texts = [prompt]
    if not any(text.strip() for text in texts):
        raise ValueError("prompt must be one text or one list of token ids, and not empty")
    return texts


def _prompt(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    """One text: the tools' definitions and what each message says, with a blank line between."""
    definitions = [msgspec.json.encode(tools).decode()] if tools else []
    return {"prompt": "\n\n".join([*definitions, *(message.content for message in messages)])}


COMPLETIONS = Dialect(
    path="/completions",
    encoder=partial(PromptEncoder, _prompt),
    decoder=StreamDecoder,
    server=Server(
        texts=_texts,
        output_tokens=16,
        wording=Wording(
            id="cmpl-",
            event="text_completion",
            whole="text_completion",
            opening=None,
            token=b'"text":"%s"',
            reasoning=None,
            choice=lambda text, _: {"text": text},
        ),
    ),
)
