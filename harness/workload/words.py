"""What prompts are made of: words that are one token each, space included.

Which words those are is asked of the tokenizer where there is one; else they are short common English words, which most
vocabularies hold whole, and only the server's usage says what they come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Short, common, unambiguous: one token each, space included, in the vocabularies of the models people serve.
COMMON = tuple(
    """time year people way day man thing woman life child world school state family student group country problem
    hand part place case week company system program question work number night point home water room mother area
    money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
    back parent face level office door health person art war history party result change morning reason research
    girl guy moment air teacher force education foot boy age policy music market sense nation plan college interest
    death experience effect use class control field development role effort rate heart drug show leader light voice
    wife police mind price report decision son view town road arm difference value building action model season
    society tax director position player record paper space ground form event official matter center couple site
    project activity star table need court oil situation cost industry figure street image phone data picture
    practice piece land product doctor wall patient worker news test movie north love support technology step baby
    computer type attention film tree source hair look window culture chance brother energy period course summer
    plant opportunity term letter condition choice rule daughter south husband floor campaign material population
    call economy hospital church risk fire future bank board subject century blood lawyer island top card""".split()
)


def single_token_words(tokens_of: Callable[[str], int], candidates: Sequence[str]) -> tuple[str, ...]:
    """The candidates that are one token each when words follow each other, by the tokenizer's own count."""
    # Measured between other words, because the first word of a text often counts differently.
    base = tokens_of(" the the")
    return tuple(word for word in candidates if tokens_of(f" the {word} the") == base + 1)
