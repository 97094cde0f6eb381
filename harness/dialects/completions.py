"""Text completions: one prompt in, pieces of text out."""

from __future__ import annotations

from functools import partial

from harness.dialects.body import PromptEncoder, one_text, openai_fields, prompt_texts
from harness.dialects.decoder import StreamDecoder
from harness.dialects.dialect import Dialect, Server, Wording
from harness.dialects.document import DocumentParser

COMPLETIONS = Dialect(
    name="completions",
    path="/completions",
    encoder=partial(PromptEncoder, lambda messages, tools: {"prompt": one_text(messages, tools)}, openai_fields),
    decoder=StreamDecoder,
    whole=partial(StreamDecoder, events=DocumentParser),
    server=Server(
        texts=prompt_texts,
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
