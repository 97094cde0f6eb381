"""Texts of a number of words, each a function of a seed and of what it is for; which words, and how many. Pure.

Every word brings the blank before it, so texts may be joined. The words are those that the tokenizer has as one token
each, where there is one; else short common English words, which most vocabularies hold whole, and only the server's
usage says what they come to. Left out: texts that somebody wrote.

Prompts may begin alike because it is asked for: with a system prompt that all share, or with one of a pool of
documents.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import msgspec

from harness.spec.scenario import Scenario
from harness.workload.request import Message, Request

_FRONT = 32  # words that are drawn anew for each text's beginning: what follows another beginning is cached nowhere
FEWEST_ALIKE = 16  # words below which there are too few orders for texts never to repeat
_REMEMBERED = 32 << 20  # characters of texts that a worker keeps because they come again


def spaced(words: Sequence[str]) -> tuple[str, ...]:
    """Return each word with its blank.

    >>> spaced(["time", "year"])
    (' time', ' year')
    """
    return tuple(" " + word for word in words)


def text(words: Sequence[str], count: int, seed: int, number: int | str) -> str:
    """Return `count` random words: texts of different (seed, number) share no beginning worth caching.

    >>> text((" a",), 3, 0, 7)
    ' a a a'
    """
    return "".join(random.Random(f"{seed}:{number}").choices(words, k=count))


def mixed(words: Sequence[str], seed: int) -> list[str]:
    """Return all the words in an order of the seed's, from which `reordered` takes them."""
    return random.Random(f"{seed}:words").sample(words, len(words))


def reordered(words: list[str], count: int, seed: int, number: int | str) -> str:
    """Return `count` words, always the same ones for a count, begun in another random order for each (seed, number).

    The words behind the first ones keep their order.

    >>> sorted(reordered([" a", " b"], 20, 0, 1).split()) == ["a"] * 10 + ["b"] * 10
    True
    """
    rest = (words * -(-count // len(words)))[:count]
    front = random.Random(f"{seed}:{number}").sample(range(count), min(count, _FRONT))
    first = [rest[i] for i in front]
    for i in front:
        rest[i] = ""
    return "".join([*first, *rest])


class Passages(msgspec.Struct, frozen=True, dict=True):
    """Texts of any length, each with a beginning of its own, and then a passage of one text that goes round and round.

    So a long text takes no longer to make than to copy: a worker that makes one does not send the next request late.

    >>> len(Passages((" a", " b"), seed=0).text(100, 7).split())
    100
    """

    words: tuple[str, ...]  # each with its blank
    seed: int

    def text(self, count: int, number: int | str) -> str:
        """Return a text of `count` words: the first ones drawn by seed and `number`, then a stretch of one cycle."""
        rng = random.Random(f"{self.seed}:{number}")
        front = "".join(rng.choices(self.words, k=min(count, _FRONT)))
        rest = count - _FRONT
        if rest <= 0:
            return front
        (whole, begins), start = self._round, int(rng.random() * len(self.words))
        rounds, end = divmod(start + rest, len(self.words))
        if rounds == 0:
            return front + whole[begins[start] : begins[end]]
        return "".join([front, whole[begins[start] :], whole * (rounds - 1), whole[: begins[end]]])

    @cached_property
    def _round(self) -> tuple[str, list[int]]:
        """Return all the words once, and where each begins."""
        words = mixed(self.words, self.seed)
        return "".join(words), list(itertools.accumulate(map(len, words), initial=0))


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What texts of a number of tokens are made of.

    Texts that come again, such as a shared prefix or a session's history, are remembered up to 32 million characters;
    past that they are all forgotten and made again.

    >>> Vocabulary(words=("a",), seed=0, tokens_per_word=2.0).text(6, "any")
    ' a a a'
    """

    words: tuple[str, ...]
    seed: int
    tokens_per_word: float = 1.0

    def text(self, tokens: int, key: str) -> str:
        """Return a text of words that come to `tokens` tokens, the same for the same key, and remember it."""
        if (known := self._remembered.get((tokens, key))) is not None:
            return known
        made = text(self._spaced, max(1, round(tokens / self.tokens_per_word)), self.seed, key)
        self._size[0] += len(made)
        if self._size[0] > _REMEMBERED:
            self._remembered.clear()
            self._size[0] = len(made)
        self._remembered[tokens, key] = made
        return made

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return spaced(self.words)

    @cached_property
    def _remembered(self) -> dict[tuple[int, str], str]:
        return {}

    @cached_property
    def _size(self) -> list[int]:
        """Return the characters in `_remembered`."""
        return [0]


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
    """Return the candidates that are one token each when words follow each other, by the tokenizer's own count."""
    # Measured between other words, because the first word of a text often counts differently.
    base = tokens_of(" the the")
    return tuple(word for word in candidates if tokens_of(f" the {word} the") == base + 1)


class PromptWords(msgspec.Struct, frozen=True, kw_only=True):
    """The words that prompts are made of, and what they come to by the server's count; by default a token each."""

    words: tuple[str, ...] = COMMON
    count: int | None = None  # words of the mean prompt; None: as many as it has tokens
    added_tokens: int = 0  # tokens that the server's template adds to every prompt
    tokens_per_word: float = 1.0
    exact: bool = False  # a tokenizer was named: every word comes to the same number of tokens

    def vocabulary(self, seed: int) -> Vocabulary:
        """Return the texts that these words make."""
        return Vocabulary(words=self.words, seed=seed, tokens_per_word=self.tokens_per_word)


class Counted(NamedTuple):
    """A prompt of so many words, and the tokens that a server counted.

    tokens = added + tokens_per_word · words, where the template adds some tokens to every prompt. The first count does
    not separate the two, so a word is taken for one token, which is right for `COMMON` in most vocabularies; from the
    second on the slope is the one to the length that is farthest from the last. A word is never less than a token, and
    a template never takes any away: counts that say so are noise.
    """

    words: int
    tokens: int


def tokens_per_word(counts: Sequence[Counted]) -> float:
    """Return the tokens that a word more comes to, by the prompt that differs most from the last one in length.

    It lies between 1 and the last prompt's tokens per word; 1 where all have as many words.

    >>> tokens_per_word([Counted(64, 136), Counted(30, 68)]), tokens_per_word([Counted(64, 72)])
    (2.0, 1.0)
    """
    last = counts[-1]
    far = max(counts, key=lambda c: abs(c.words - last.words))
    if far.words == last.words:
        return 1.0
    slope = (last.tokens - far.tokens) / (last.words - far.words)
    return max(1.0, min(slope, last.tokens / last.words))


def next_words(counts: Sequence[Counted], tokens: int, *, one_token: bool = True) -> int:
    """Return how many words the next trial prompt needs for `tokens` tokens, by earlier counts; < 1: not possible.

    By one count alone the length goes by a token a word, or in proportion where that leaves no word, or where it is
    known (not `one_token`) that a word must be more.

    >>> next_words([Counted(64, 136)], 64), next_words([Counted(64, 136), Counted(30, 68)], 64)
    (30, 28)
    """
    last = counts[-1]
    words = last.words + round((tokens - last.tokens) / tokens_per_word(counts))
    alone = all(count.words == last.words for count in counts)
    return max(1, last.words * tokens // last.tokens) if alone and (words < 1 or not one_token) else words


class Prefixes(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A pool of prefixes of one length, and how often each is used; a pool of one is a system prompt that all share.

    >>> pool = Prefixes(vocabulary=Vocabulary(words=("a",), seed=0), tokens=2)
    >>> pool.index(7), pool.text(7)
    (0, ' a a')
    """

    vocabulary: Vocabulary
    tokens: int  # tokens of each prefix
    pool: int = 1  # different prefixes
    share: float = 1.0  # share of the requests that have one
    zipf: float = 0.0  # s: the k-th of the pool is drawn in proportion to 1/k^s; 0 draws all alike often

    def index(self, number: int) -> int | None:
        """Return the index, from 0, of the pool's prefix that the n-th request begins with; None if it has none."""
        drawn = random.Random(f"{self.vocabulary.seed}:prefix of:{number}")
        if drawn.random() >= self.share:
            return None
        return bisect(self._upto, drawn.random() * self._upto[-1], hi=self.pool - 1)

    def text(self, number: int) -> str:
        """Return the prefix of a request; "" if it has none."""
        found = self.index(number)
        return "" if found is None else self.vocabulary.text(self.tokens, f"prefix:{found}")

    def before(self, request: Request) -> Request:
        """Return the request with its prefix before the prompt's first word, or as a conversation's first message.

        Its input tokens grow by the prefix's. A request that gets no prefix is returned as it is.
        """
        if not (prefix := self.text(request.number)):
            return request
        prompt = request.prompt
        longer = prefix + prompt if isinstance(prompt, str) else (Message("system", prefix), *prompt)
        tokens = None if request.input_tokens is None else request.input_tokens + self.tokens
        return msgspec.structs.replace(request, prompt=longer, input_tokens=tokens)

    @cached_property
    def _upto(self) -> list[float]:
        """Return the weights of the prefixes up to each, shape [pool]."""
        return list(accumulate((k + 1) ** -self.zipf for k in range(self.pool)))


def prefixes(scenario: Scenario, vocabulary: Vocabulary) -> Prefixes | None:
    """Return the prefixes that a scenario asks for; None if it asks for none."""
    spec = scenario.workload.prefix
    if not spec:
        return None
    return Prefixes(vocabulary=vocabulary, tokens=spec.tokens, pool=spec.pool, share=spec.share, zipf=spec.zipf)
