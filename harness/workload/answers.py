"""What is kept of an answer whose text is not: digests of its beginnings, where it leaves another, and its flaws.

A digest is of an answer's words, whatever blanks stand between them. The digests of its beginnings tell the word at
which two answers part. Left out: languages that put no blanks between words, whose answers are one word. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

REPLACEMENT = "\ufffd"  # what servers put for bytes that are no UTF-8
EMPTY, INVALID_UTF8, REPETITION = "empty", "invalid_utf8", "repetition"

_LONGEST = 65_536  # characters of an answer that are looked at
_WHOLE, _BEGINNING = 16, 4  # hex digits of a digest
_BEGINNINGS = 256  # words up to which an answer's beginnings have one each
_PERIOD = 16  # words of a phrase that may come again and again
_AGAIN, _TIMES = 12, 3  # words, and times, that it has to for an answer to count as repeating itself


def digests(text: str) -> str:
    """The digest of an answer's words, then one of each of its beginnings, in hex.

    >>> len(digests("to be")), digests("to be")[:20] == digests("to  be\\n")[:20]
    (24, True)
    """
    words = text[:_LONGEST].split()
    running = hashlib.blake2b(digest_size=_WHOLE // 2)
    beginnings = []
    for number, word in enumerate(words):
        running.update(word.encode("utf-8", "replace") + b" ")
        if number < _BEGINNINGS:
            beginnings.append(running.hexdigest()[:_BEGINNING])
    return running.hexdigest() + "".join(beginnings)


def differs_at(one: str, other: str) -> int | None:
    """Words that two answers begin with alike, by their digests; None where they are alike to the end.

    >>> differs_at(digests("to be or"), digests("to be and")), differs_at(digests("to be"), digests("to be"))
    (2, None)
    """
    if one[:_WHOLE] == other[:_WHOLE]:
        return None
    begins, others = (
        [text[at : at + _BEGINNING] for at in range(_WHOLE, len(text), _BEGINNING)] for text in (one, other)
    )
    alike = 0
    for a, b in zip(begins, others, strict=False):
        if a != b:
            break
        alike += 1
    return alike


def flaw(text: str) -> str:
    """What makes a text no answer at all, "" where nothing does.

    An answer that is cut may end inside a character: that is no flaw.

    >>> flaw(" \\n"), flaw("caf\\ufffd au lait"), flaw("the same " * 8), flaw("one, two, three")
    ('empty', 'invalid_utf8', 'repetition', '')
    """
    text = text[:_LONGEST]
    if not text.strip():
        return EMPTY
    if REPLACEMENT in text.rstrip(REPLACEMENT):
        return INVALID_UTF8
    return REPETITION if _repeats(text.split()) else ""


def _repeats(words: Sequence[str]) -> bool:
    """Whether the last words are one phrase, at least three times and twelve words."""
    for period in range(1, min(_PERIOD, len(words) // _TIMES) + 1):
        alike = period
        while alike < len(words) and words[-alike - 1] == words[-alike - 1 + period]:
            alike += 1
        if alike >= max(_AGAIN, _TIMES * period):
            return True
    return False
