"""The first requests of a run, one at a time: they find the prompt's length, the fields that are taken, and the time.

A request of one token finds how long a prompt of the asked length has to be; one of a few tokens is timed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Mapping

import msgspec

from harness.dialects import DIALECTS, decoder, refusals
from harness.errors import HarnessError
from harness.experiment.unreachable import not_served, server_words, way_out_of
from harness.load import control
from harness.load.http1 import ResponseParser
from harness.scenario import Scenario
from harness.secrecy import plain
from harness.workload import length, probe
from harness.workload.request import Request
from harness.workload.uniform import Uniform

LONGEST_BODY = 65_536  # bytes of an error's body that are looked through
_PROBES = 6  # tries to meet the asked prompt length
_NEAR = 0.005  # of the asked length: near enough where words are all there is to make it of
_FEWER = 4  # a first prompt that is too long is tried at a fourth
_TOO_LONG = re.compile(r"context|too long|too large|maximum|exceed|length", re.I)
_SEVERAL = 1.2  # tokens a word above which that is noted
_INSTEAD = {
    "max_tokens": "max_completion_tokens is sent",
    "temperature": "left out, and the server samples as it likes",
}
_TIMED = 8  # tokens: enough for a pace, and a run need not wait for a long answer before it begins


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """What the first requests told."""

    drop: frozenset[str]
    prompt_words: int
    prompts_used: int
    input_tokens: int | None
    tokens_per_word: float
    e2e_s: float
    itl_s: float | None
    http_version: str
    notes: tuple[str, ...]


async def first_requests(
    api: control.Client,
    scenario: Scenario,
    url: str,
    path: str,
    model: str,
    words: tuple[str, ...],
    first_prompt: int,
    busy: Awaitable[object] | None,
) -> Learnt:
    """A request of one token that finds the prompt's length, one of a few for its time; more if that was not exact.

    `busy` is what this process does meanwhile: its end is waited for before a request is timed.
    """
    workload = scenario.workload
    asked, seed = workload.input_tokens, workload.seed or 0
    shortest = probe.FEWEST_WORDS if scenario.ramp.probe == probe.DECODE else None  # its prompts are as short as can be
    fewest = shortest or 1
    used, drop = first_prompt, frozenset[str]()
    notes: list[str] = []
    counts: list[length.Counted] = []

    async def ask(words_now: int, output_tokens: int) -> _Reply:
        nonlocal drop, used, notes
        source = Uniform(
            words=words,
            prompt_words=words_now,
            output_tokens=output_tokens,
            seed=seed,
            alike=workload.tokenizer is None,
        )
        request = await asyncio.to_thread(source.request, used)  # a long one takes seconds: Ctrl-C works meanwhile
        reply = await _ask(api, scenario, url, path, model, request, drop)
        drop, used = reply.drop, used + 1
        notes += reply.notes
        if reply.response.input_tokens is not None:
            counts.append(length.Counted(words_now, reply.response.input_tokens))
        return reply

    first, one_token = max(asked, fewest), True
    try:
        await ask(first, 1)
    except _RefusedError as error:  # a word may be several tokens, and the context full
        if not _TOO_LONG.search(error.fact) or first < _FEWER * fewest:
            raise
        first, one_token = max(fewest, first // _FEWER), False
        await ask(first, 1)
    if busy is not None:
        await busy
    words_now, timed, e2e = first, None, 0.0
    near = 0.0 if workload.tokenizer else _NEAR * asked
    while timed is None or (counts and abs(counts[-1].tokens - asked) > near and used - first_prompt < _PROBES):
        better = max(fewest, length.next_words(counts, asked, one_token=one_token) if counts else words_now)
        if timed is not None and better == words_now:  # no nearer prompt is made of words
            break
        words_now, began = better, time.monotonic()
        timed = await ask(words_now, min(workload.output_tokens, _TIMED))
        e2e = time.monotonic() - began
    counted = counts[-1].tokens if counts else None
    per_word = length.tokens_per_word(counts) if counts else 1.0
    if shortest is None and words_now == 1:
        _must_have_room(asked, counted, per_word)
    exact = bool(workload.tokenizer) or words_now == shortest
    notes += _length_notes(asked, counted, per_word, words_now, exact=exact)
    left_s, itl_s = _rest(timed.response, workload.output_tokens)
    return Learnt(
        drop=drop,
        prompt_words=words_now,
        prompts_used=used,
        input_tokens=counted,
        tokens_per_word=per_word,
        e2e_s=e2e + left_s,
        itl_s=itl_s,
        http_version=timed.http_version,
        notes=tuple(notes),
    )


def _rest(response: decoder.DecodedResponse, output_tokens: int) -> tuple[float, float | None]:
    """(seconds that a whole answer would have taken longer, at the pace of this one; seconds between its chunks)."""
    arrivals, came = response.arrivals, response.output_tokens or 0
    if len(arrivals) < 2:
        return 0.0, None
    span_s = (arrivals[-1] - arrivals[0]) * 1e-9
    left_s = span_s / (came - 1) * max(0, output_tokens - came) if came > 1 else 0.0
    return left_s, span_s / (len(arrivals) - 1)


def _must_have_room(asked: int, counted: int | None, per_word: float) -> None:
    """HarnessError where what the server adds to a prompt of one word is more than was asked for already."""
    if counted is not None and counted - per_word >= asked:
        raise HarnessError(
            f"the server adds tokens: a prompt of 1 word is already more than {asked}",
            place="--input-tokens",
            way_out=f"ask for at least {counted}",
        )


def _length_notes(asked: int, counted: int | None, per_word: float, words: int, *, exact: bool) -> list[str]:
    """What is to be said of the length that prompts have."""
    notes = []
    if counted is None:
        notes.append("the server gives no usage: input tokens are words, output tokens are chunks")
    elif counted != asked:
        notes.append(
            f"prompts come to {counted} tokens by the server's count, {asked} were asked"
            + ("" if exact else "; --tokenizer makes them exact")
        )
    if per_word > _SEVERAL:
        notes.append(f"a word of the prompts is {per_word:.2g} tokens by the server's count: {words} words a prompt")
    return notes


class _RefusedError(HarnessError):
    """A 400, 413 or 422 that names no field which could be left out."""


class _Reply(msgspec.Struct, frozen=True):
    response: decoder.DecodedResponse
    drop: frozenset[str]
    notes: list[str]
    http_version: str


async def _ask(
    api: control.Client,
    scenario: Scenario,
    url: str,
    path: str,
    model: str,
    request: Request,
    drop: frozenset[str],
) -> _Reply:
    """One streamed request; an optional field that the server refuses by name is dropped and it is asked again."""
    notes: list[str] = []
    dialect, extra, quota = DIALECTS[scenario.target.api], scenario.target.extra_body, scenario.target.max_rps
    while True:
        if quota:
            await asyncio.sleep(1.0 / quota)
        content = dialect.encoder(model, drop=drop, extra=extra).encode(request)
        decoding = dialect.decoder()
        headers = {"Content-Type": "application/json", "X-Request-Id": "knee-check"}
        within_s = scenario.target.request_timeout
        async with control.response(api, "POST", path, within_s, content, headers) as answer:
            if answer.status in (400, 413, 422):
                message = (await control.whole(answer))[:LONGEST_BODY].decode("utf-8", "replace")
                field = refusals.refused_field(message, drop | frozenset(extra))
                if field is not None:
                    drop |= {field}
                    notes.append(f"the server refuses {field}: {_INSTEAD.get(field, 'left out')}")
                    continue
                raise _RefusedError(
                    server_words(answer.status, message), place=url + path, way_out="change what is asked"
                )
            if answer.status != 200:
                message = (await control.whole(answer))[:LONGEST_BODY].decode("utf-8", "replace")
                no = not_served(answer.status, message, url + path)
                raise no or HarnessError(
                    server_words(answer.status, message), place=url + path, way_out=way_out_of(answer.status)
                )
            _must_stream(answer.headers, url + path)
            ResponseParser().take_head(answer.status, answer.headers)  # as the load will read it
            async for piece in control.pieces(answer):
                decoding.feed(piece, time.monotonic_ns())
        response = decoding.end(time.monotonic_ns())
        if response.error:
            raise HarnessError(
                f"the first request failed: {response.error} ({response.message[:160]})",
                place=url + path,
                way_out="see the server's log; nothing was loaded",
            )
        return _Reply(response, drop, notes, answer.http_version)


def _must_stream(headers: Mapping[str, str], place: str) -> None:
    """HarnessError where a response is no plain stream of events."""
    kind = headers.get("content-type", "")
    if "event-stream" not in kind:
        what = "HTML" if "html" in kind else "one JSON body" if "json" in kind else None
        what = what or repr(plain(kind[:60]) or "no content type")
        raise HarnessError(
            f"it answers with {what}, not a stream", place=place, way_out="give an endpoint that streams"
        )
    if (coding := headers.get("content-encoding", "identity")) != "identity":
        raise HarnessError(
            f"it compresses its streams ({coding[:40]}), though no compression was asked for",
            place=place,
            way_out="switch compression off for text/event-stream there",
        )
