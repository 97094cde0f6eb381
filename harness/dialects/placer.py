"""Tokens of each chunk by a tokenizer: for servers whose chunks have several tokens and whose usage does not run.

The whole response is encoded once and each token counts for the chunk that completes it, also where chunks cut a token
or a character in two. Left out: special tokens, which no stream shows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise


class TokenPlacer:
    """A tokenizer, from the text of its tokenizer.json, that counts the tokens of each chunk of a response."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer, processors

        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)  # a blank ends where it stands

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens that each chunk completes, by the cumulative text; shape [chunks]."""
        offsets = self._tokenizer.encode("".join(texts), add_special_tokens=False).offsets
        ends = sorted(end for _, end in offsets)
        upto = [0, *(bisect_right(ends, seen) for seen in accumulate(map(len, texts)))]
        return [after - before for before, after in pairwise(upto)]
