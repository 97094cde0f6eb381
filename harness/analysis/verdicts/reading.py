"""What answers were read in spite of: a note for each kind of `Record.noted`, with how many answers had it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from harness.data.judgement import Code, Gravity, Verdict
from harness.data.record import Level, Record

_FEW = 3  # details that a note names
# By code; the detail behind its colon is put in.
_WORDS = {
    "unlisted": "tokens came in the field {}, which is no part of the API, and count as others do",
    "asked": "the server counts no tokens: an answer that ended at its length has as many as were asked for",
    "think": "the content begins with the model's thoughts ({}): when the answer begins is not known, nor is TTFAT",
    "no_finish": "answers have no finish_reason; usage, [DONE] or the end of the response show that they are whole",
    "no_end": "answers came whole, and their responses did not end",
    "no_text": "answers have tokens by the server's count, and no text",
    "cut_after_end": "the connection broke behind an answer that was whole",
    "left_out": "an odd value was left out of the answer: {}",
    "content_type": "the content type is {}; the first bytes showed how to read the answer",
    "data_twice": "events have `data:` twice",
    "uncounted": "the server's total has {} tokens more than it counts for prompt and answer: they are in no figure",
}
_DETAILS = {"think": "<think>"}


def verdicts(records: Sequence[Record], level: Level) -> list[Verdict]:
    """Return a note for each kind among the level's own requests; none where all were read as they are described."""
    counts: dict[str, int] = defaultdict(int)
    details: dict[str, dict[str, None]] = defaultdict(dict)
    own = 0
    for record in records:
        if record.level != level.index:
            continue
        own += 1
        for code in filter(None, record.noted.split(",")):
            kind, _, detail = code.partition(":")
            counts[kind] += 1
            details[kind][detail or _DETAILS.get(kind, "")] = None
    return [
        Verdict(
            f"{Code.READ_WITH_CARE}_{kind}",
            Gravity.NOTE,
            f"{_words(kind, list(details[kind])[:_FEW])} ({count} of {own} answers)",
            "",
            level.concurrency or level.rate,
        )
        for kind, count in sorted(counts.items())
    ]


def _words(kind: str, details: Sequence[str]) -> str:
    shown = ", ".join(details)
    return _WORDS[kind].format(shown) if kind in _WORDS else f"{kind} {shown}".strip()
