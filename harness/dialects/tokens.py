"""Where each token of a response arrived: what its chunks showed, and what usage or a tokenizer counts. No IO.

The order in which a count is trusted is that of token_source in docs/definitions.md, Columns of requests.parquet.
With a tokenizer the whole response is encoded once, and each token counts for the chunk that completes it, also where
chunks cut a token or a character in two. Left out: special tokens, which no stream shows.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress, pairwise

from harness.dialects.chunk import Usage

_LENGTH = frozenset(
    ("length", "max_tokens", "max_output_tokens", "limit", "max_length")
)  # reasons of an answer cut by it
_THOUGHT = re.compile("reason|think|thought|analysis", re.I)  # names of fields that hold no answer
_UNCOUNTED = 0.1  # share of prompt and output by which the total may be more without a note
_MOST_NOTES = 8  # notes on one answer: field names are the server's
_FOREIGN = 0.05  # a tokenizer that finds this much more than usage counts is not the server's


class TokenPlacer:
    """A tokenizer, from the text of its tokenizer.json, that counts the tokens of each chunk of a response."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer, processors

        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)  # a blank ends in its place

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens that each chunk completes, by the cumulative text; shape [chunks]."""
        offsets = self._tokenizer.encode("".join(texts), add_special_tokens=False).offsets
        ends = sorted(end for _, end in offsets)
        upto = [0, *(bisect_right(ends, seen) for seen in accumulate(map(len, texts)))]
        return [after - before for before, after in pairwise(upto)]


class Shown:
    """What a response has shown so far: each chunk that carried tokens, and the counts that came with them."""

    __slots__ = (
        "_answered", "_arrivals", "_asked", "_counted", "_empty", "_error", "_field", "_finish_reason", "_lengths",
        "_message", "_noted", "_output_tokens", "_placer", "_reasoned", "_reasoning_tokens", "_text", "_tokens",
        "_unlisted", "_usage",
    )  # fmt: skip

    def __init__(self, placer: TokenPlacer | None, asked: int | None) -> None:
        self._placer = placer
        self._asked = asked
        self._text = bytearray() if placer is not None else None  # UTF-8; dropped when usage is seen to run
        self._counted: int | None = None  # the server's running count, if it sends one before the end
        self._answered = -1  # the first chunk that carries some of the answer, not of the reasoning
        self._empty = 0  # chunks after the first token that showed none of their own
        self._unlisted = array("I")  # chunks whose text is in a field that nobody listed
        self._field = ""  # the first such
        self._noted: list[str] = []
        self._usage: Usage | None = None  # usage that came with the end
        self._reasoned = False
        self._lengths = array("H")  # length of each chunk's text, in bytes
        self._tokens: array[int] | None = None  # tokens of each chunk; None while each has one
        self._arrivals = array("q")
        self._error = ""
        self._message = ""
        self._finish_reason = ""
        self._output_tokens: int | None = None
        self._reasoning_tokens: int | None = None

    def _note(self, code: str) -> None:
        if code not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.append(code)

    def _fail(self, error: str, message: str) -> None:
        if not self._error:
            self._error, self._message = error, message

    def _settle(self, stamp_ns: int, *, streamed: bool) -> str:
        """Decide where each token arrived: running usage, one a chunk, the tokenizer, usage by bytes.

        Returns the name of what decided. `streamed`: the answer did not come as one document.
        """
        if self._counted is not None and not self._trusted():
            self._keep_chunks(self._lengths)
            self._counted = self._tokens = None
        if self._unlisted:
            self._settle_unlisted()
        chunks, usage = len(self._arrivals), self._shown_tokens()
        if not streamed and self._output_tokens and not self._error:
            # All tokens of an answer that does not stream came with it, also those of a text that it does not show.
            source, self._tokens = "bytes", array("i", [self._output_tokens])
            if not chunks:
                self._arrivals.append(stamp_ns)
                self._reasoned = True
                self._note("no_text")
        elif not chunks:
            source = ""
        elif self._counted is not None:
            source = "continuous"
        elif usage is None and not self._error and (placed := self._placed(None)) is not None:
            source, self._tokens, self._output_tokens = "tokenizer", placed, sum(placed)
        else:
            if usage is None and not self._error:
                usage = self._output_tokens = chunks
                if self._asked and self._asked >= chunks and self._finish_reason.lower() in _LENGTH:
                    usage = self._output_tokens = self._asked
                    self._note("asked")
            if usage is None or usage in (chunks, chunks + self._empty) or self._error:
                # The tokens of chunks that showed nothing have no arrival: an end of text, part of a character.
                source = "chunks"
            elif usage > sum(self._lengths) and self._text is None:
                # No token is shorter than a byte, so some were not in this text: nothing tells how many each chunk has.
                source = "chunks"
            elif (placed := self._placed(usage)) is not None:
                source, self._tokens = "tokenizer", placed
            else:
                source, self._tokens = "bytes", _shared(min(usage, sum(self._lengths)), self._lengths)
        if self._tokens is not None:
            self._keep_chunks(self._tokens)
            if self._tokens.count(1) == len(self._tokens):
                self._tokens = None
        if self._error and self._output_tokens is None:
            self._output_tokens = len(self._arrivals) if self._tokens is None else sum(self._tokens)
        self._lengths, self._text = array("H"), None  # a finished response keeps its arrivals only
        return source

    def _settle_unlisted(self) -> None:
        """Keep chunks with text in unlisted fields if usage counts more than the known fields had; else drop them."""
        chunks, unlisted = len(self._arrivals), set(self._unlisted)
        known = chunks - len(unlisted)
        if self._counted is not None:
            count = not self._tokens or any(self._tokens[each] for each in unlisted)
        else:
            count = not known or (self._output_tokens or 0) > known + self._empty
        if count:
            self._note(f"unlisted:{self._field}")
            self._reasoned = self._reasoned or self._answered >= 0 or bool(_THOUGHT.search(self._field))
        else:
            self._keep_chunks([each not in unlisted for each in range(chunks)])

    def _shown_tokens(self) -> int | None:
        """Return the output tokens that the stream showed, by the server's count; None if it gave none.

        Without those of a reasoning that was not streamed: they have no arrival. 0 for a text that came is a
        placeholder.
        """
        usage = self._output_tokens or None
        if usage is None or self._reasoned or not self._reasoning_tokens:
            return usage
        return max(usage - self._reasoning_tokens, min(usage, len(self._arrivals)))

    def _keep_chunks(self, marks: Iterable[int]) -> None:
        """Keep only the chunks whose mark is not 0."""
        marks = bytes(map(bool, marks))
        if 0 in marks:
            if self._unlisted:
                places = list(accumulate(marks, initial=0))
                self._unlisted = array("I", (places[each] for each in self._unlisted if marks[each]))
            if self._text is not None:
                ends = pairwise(accumulate(self._lengths, initial=0))
                self._text = bytearray().join(compress((self._text[a:b] for a, b in ends), marks))
            if self._answered > 0:
                self._answered = sum(marks[: self._answered])
            self._arrivals = array("q", compress(self._arrivals, marks))
            self._lengths = array(self._lengths.typecode, compress(self._lengths, marks))
            if self._tokens is not None:
                self._tokens = array("i", compress(self._tokens, marks))

    def _trusted(self) -> bool:
        """Return whether the running usage may place tokens; some servers send 0 until the end."""
        few, tokens = max(1, len(self._arrivals) // 10), self._tokens
        if tokens is None:
            return (self._shown_tokens() or 0) - len(self._arrivals) <= few
        if not self._lengths[-1] and tokens.count(1) == len(tokens) - 1 and tokens[-1] > 1:
            return tokens[-1] <= few
        silent = sum(1 for each, length in zip(tokens, self._lengths, strict=True) if length and not each)
        return silent <= few

    def _placed(self, usage: int | None) -> array[int] | None:
        """Return each chunk's tokens by the tokenizer; None without one, or where it finds more than the server."""
        if self._placer is None or self._text is None:
            return None
        ends = accumulate(self._lengths, initial=0)
        placed = self._placer.counts([self._text[a:b].decode() for a, b in pairwise(ends)])
        total = sum(placed)
        # Fewer is what the text does not show (markers, hidden reasoning) and stays unplaced.
        may_be = usage is None or total <= usage + max(1, int(_FOREIGN * usage))
        return array("i", placed) if total and may_be else None

    def _note_uncounted(self) -> None:
        """Note the tokens of the usage's total that are neither the prompt's nor the answer's, if they are many."""
        usage = self._usage or Usage()
        counted = (usage.prompt_tokens or 0) + (self._output_tokens or 0)
        beyond = min(usage.total_tokens or 0, 2**31 - 1) - counted
        if usage.prompt_tokens and usage.completion_tokens and beyond > _UNCOUNTED * counted:
            self._note(f"uncounted:{beyond}")

    def _first_content(self) -> int:
        """Return the stamp of the first chunk of the answer, after any reasoning; 0 if none is known."""
        if "think" in self._noted:
            return 0
        answered = self._answered if self._reasoned else 0
        return self._arrivals[answered] if 0 <= answered < len(self._arrivals) else 0


def _shared(total: int, lengths: array[int]) -> array[int]:
    """Share a total out by length: whole numbers that add up to it, none of them 0 if there is enough for all.

    >>> _shared(6, array("H", [4, 2])), _shared(3, array("H", [100, 1, 1])), _shared(1, array("H", [2, 2]))
    (array('i', [4, 2]), array('i', [1, 1, 1]), array('i', [1, 0]))
    """
    whole, left, out, shared, seen = sum(lengths), len(lengths), array("i"), 0, 0
    enough = total >= left
    for length in lengths:
        seen += length
        left -= 1
        upto = -(-total * seen // whole)
        if enough:
            upto = min(max(upto, shared + 1), total - left)
        out.append(upto - shared)
        shared = upto
    return out
