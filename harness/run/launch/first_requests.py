"""The first requests of a run, one at a time: they find the prompt's length, the accepted fields, and the time.

The first one finds how many words make a prompt of --input-tokens. It asks for a few tokens, or for as few as the
load's shortest answers have: what the server refuses here, it would refuse then. The second one is timed. Where the
load has tools, or classes with fields of their own, one more of each kind shows that the server takes them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Collection
from typing import Any

import msgspec

from harness.base.errors import HarnessError
from harness.dialects import DIALECTS, decoder, refusals
from harness.load import control
from harness.run.launch import answers, published
from harness.run.launch.answers import (
    NotSpokenError,
    Reply,
    not_served,
    own_words,
    redirected,
    server_words,
    way_out_of,
)
from harness.run.launch.endpoint import Alone, Endpoint
from harness.spec.scenario import Scenario
from harness.spec.work import Unit
from harness.workload import image, probe, shape, text
from harness.workload.request import Request
from harness.workload.source import Uniform, together

_PROBES = 6  # tries to meet the prompt length
_NEAR = 0.005  # share of the prompt length: near enough where prompts are made of whole words
_FEWER = 4  # a first prompt that is too long is tried at a fourth
_TOO_LONG = re.compile(r"context|too long|too large|maximum|exceed|length", re.I)
_NO_STREAM = re.compile(r"stream\w*\W[^.]{0,40}\b(not|un|isn't|disabled)|not support\w*\W[^.]{0,20}stream", re.I)
_INSTEAD = {
    "max_tokens": "max_completion_tokens is sent",
    "temperature": "left out; the server samples by its default",
}
_FEW = 16  # tokens: OpenAI's newer models refuse fewer, and a run need not wait for a long answer
_FASTEST_S = 1e-4  # a token: no model streams faster, so what does came at one moment
_SHORTER = 0.01  # share of the load's answers that may be shorter than the first one


async def first_requests(
    api: control.Client, scenario: Scenario, endpoint: Endpoint, busy: Awaitable[object] | None
) -> Endpoint:
    """Send the first requests; return the endpoint with words a prompt, refused fields, and the time of one request.

    The first request shows the prompt's tokens, the second is timed; more follow if these were not as wanted. `busy`
    is other work of this process: it is awaited before a request is timed.
    """
    mean = shape.of(scenario).mean()
    wanted, answer = round(mean.input_tokens), round(mean.output_tokens)
    shortest = probe.FEWEST_WORDS if scenario.ramp.probe == probe.DECODE else 1  # its prompts are as short as can be
    requests = _Requests(api, scenario, endpoint)
    words, one_token = max(wanted, shortest), True
    try:
        try:
            await requests.send(words, requests.first_tokens)
        except _RefusedError as error:  # a word may be several tokens, and the context full
            if not _TOO_LONG.search(error.fact) or words < _FEWER * shortest:
                raise
            words, one_token = max(shortest, words // _FEWER), False
            await requests.send(words, requests.first_tokens)
    except (_RefusedError, NotSpokenError) as error:
        raise _of_model(error, requests.status, endpoint) from None
    if busy is not None:
        await busy
    words, timed, e2e_s = await _timed(requests, words, wanted, fewest=shortest, one_token=one_token)
    await requests.send_kinds(words)
    counted = requests.counts[-1].tokens if requests.counts else None
    prompts = msgspec.structs.replace(
        endpoint.prompts,
        count=words,
        tokens=counted,
        tokens_per_word=text.tokens_per_word(requests.counts) if requests.counts else 1.0,
        used=requests.used,
    )
    left_s, itl_s = _rest(timed, answer, e2e_s)
    codec = msgspec.structs.replace(endpoint.wire.codec, drop=requests.drop)
    ready = msgspec.structs.replace(
        endpoint,
        wire=msgspec.structs.replace(endpoint.wire, codec=codec),
        unit=_unit(scenario, counted),
        http_version=requests.http_version,
        prompts=prompts,
        alone=Alone(e2e_s=e2e_s + left_s, itl_s=itl_s),
    )
    exact = prompts.exact or words in (1, shortest)
    notes = (*endpoint.notes, *requests.notes, *_length_notes(scenario, ready, wanted, exact=exact))
    notes += _chunk_notes(scenario, timed)
    return msgspec.structs.replace(ready, notes=notes)


async def _timed(
    requests: _Requests, words: int, wanted: int, *, fewest: int, one_token: bool
) -> tuple[int, decoder.DecodedResponse, float]:
    """Send requests until a prompt has the wanted length, or until no nearer one is made of words.

    (words of the last prompt, its answer, seconds that it took).
    """
    near, last = 0.0 if requests.exact else _NEAR * wanted, None
    while last is None or (abs(requests.off(wanted)) > near and requests.sent < _PROBES):
        better = words
        if requests.counts:
            better = max(fewest, text.next_words(requests.counts, wanted, one_token=one_token))
        if last is not None and better == words:
            break
        words, began = better, time.monotonic()
        timed = await requests.send(words, requests.timed_tokens)
        last = words, timed, time.monotonic() - began
    return last


def _of_model(error: HarnessError, status: int, endpoint: Endpoint) -> HarnessError:
    """Return the first request's error, or, if the model may be missing (404, unlisted), one that says so."""
    of_name = status == 400 and "model" in error.fact.lower() and not _TOO_LONG.search(error.fact)
    if endpoint.model.listed or not (status == 404 or of_name):
        return error
    unlisted = published.lacks(endpoint.model, endpoint.address)
    return type(error)(unlisted.fact, place=unlisted.place, way_out=f"{unlisted.way_out} ({error.fact})")


def _rest(response: decoder.DecodedResponse, output_tokens: int, e2e_s: float) -> tuple[float, float | None]:
    """Return (seconds that `output_tokens` would take beyond this shorter response, seconds between its chunks).

    Where all came at one moment, as behind a proxy that buffers, each token takes its share of the whole `e2e_s`.
    """
    arrivals, came = response.arrivals, response.output_tokens or 0
    span_s = (arrivals[-1] - arrivals[0]) * 1e-9 if arrivals else 0.0
    left = max(0, output_tokens - came)
    if span_s < _FASTEST_S * (came - 1) or came < 2:
        return e2e_s / came * left if came else 0.0, None
    return span_s / (came - 1) * left, span_s / (len(arrivals) - 1)


def _unit(scenario: Scenario, counted: int | None) -> Unit:
    """Return what throughput counts: where neither the server nor a tokenizer counts input tokens, documents."""
    unit, workload = DIALECTS[scenario.target.api].unit, scenario.workload
    by_tokenizer = workload.tokenizer is not None and scenario.one_length
    return Unit.DOCUMENTS if unit is Unit.INPUT_TOKENS and counted is None and not by_tokenizer else unit


def _length_notes(scenario: Scenario, endpoint: Endpoint, wanted: int, *, exact: bool) -> list[str]:
    """Return notes on prompts whose tokens the server does not count, or counts other than `wanted`."""
    counted = endpoint.prompts.tokens
    notes = []
    if counted is None and not scenario.decodes:
        what = {Unit.DOCUMENTS: "throughput is in documents, and --tokenizer counts tokens"}
        by_words = "input tokens are those of the tokenizer, without special ones"
        notes.append(f"the server counts no tokens: {what.get(endpoint.unit, by_words)}")
    elif counted is None:
        output = "the tokenizer's" if endpoint.prompts.tokenizer_json else "chunks"
        notes.append(f"the server gives no usage: input tokens are words, output tokens are {output}")
    elif counted != wanted:
        notes.append(
            f"prompts come to {counted} tokens by the server's count, not {wanted}"
            + ("" if exact else "; --tokenizer makes them exact")
        )
    return notes


def _chunk_notes(scenario: Scenario, timed: decoder.DecodedResponse) -> tuple[str, ...]:
    """Return a note where percentiles of ITL are limited and several tokens come in a chunk."""
    from harness.analysis.rules.figures import TOKENS_PER_CHUNK

    limits = [name for name in scenario.slo if name.startswith("itl_p")]
    tokens, chunks = sum(timed.tokens), len(timed.arrivals)
    if not limits or tokens <= TOKENS_PER_CHUNK * chunks:
        return ()
    return (f"{tokens} tokens came in {chunks} chunks, so {' and '.join(limits)} cannot be judged; limit tpot or icl",)


def _way_out(class_name: str, fields: Collection[str]) -> str:
    """Return what to do if a server refuses requests of a class for these fields; without a class, for their tools."""
    if class_name:
        return f"change class {class_name!r}, which sends {' and '.join(fields)}, or how the server is started"
    return "let the server call tools (vLLM: --enable-auto-tool-choice, --tool-call-parser), or leave tools out"


class _RefusedError(HarnessError):
    """A 400, 413 or 422 that names no field which could be left out, or an answer without a token."""


def class_fields(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """Return {class: fields that its request bodies have besides (model, priority, response_format)}."""
    by_class: dict[str, dict[str, Any]] = {}
    for spec in scenario.class_ or ():
        fields: dict[str, Any] = {}
        if spec.model:
            fields["model"] = spec.model
        if spec.priority is not None:
            fields["priority"] = spec.priority
        if spec.structured:
            fields["response_format"] = {"type": "json_object"}
        if fields:
            by_class[spec.name] = fields
    return by_class


class _Requests:
    """Sends requests to the endpoint one at a time, and keeps what their answers show."""

    def __init__(self, api: control.Client, scenario: Scenario, endpoint: Endpoint) -> None:
        self._api, self._scenario, self._words = api, scenario, endpoint.prompts.words
        self.exact = endpoint.prompts.exact
        self._path = endpoint.wire.target.path
        self.place = endpoint.address.base + self._path  # for errors
        workload, lengths = scenario.workload, shape.of(scenario)
        planned = image.plan(workload)
        self._images = image.Images(*planned, workload.seed or 0) if planned else None
        # Models and adapters are left out: the first request to one loads it, which is a part of the load.
        own = {
            name: {field: value for field, value in fields.items() if field != "model"}
            for name, fields in class_fields(scenario).items()
        }
        self._classes = {name: fields for name, fields in own.items() if fields}
        self._codec = msgspec.structs.replace(endpoint.wire.codec, classes=self._classes)
        self.used = self._first = endpoint.prompts.used  # number of the next prompt
        self._omit = frozenset(scenario.target.omit or ())
        self.drop = self._omit  # with the fields that the server refuses
        self._seen: dict[str, None] = {}  # notes on the answers, each once
        least = scenario.target.extra_body.get("min_tokens")
        few = max(_FEW, least) if isinstance(least, int) else _FEW
        answer = round(lengths.mean().output_tokens)
        shortest = [class_.output.quantile(_SHORTER) for class_ in lengths.classes if class_.share]
        self.first_tokens = min([few, answer, *shortest])  # what is refused here, the load's answers would be
        self.timed_tokens = min(few, answer) if scenario.target.streams else answer
        self.status, self.http_version = 0, ""  # from the last answer
        self.counts: list[text.Counted] = []  # counts of the prompts so far, if the server counts them

    @property
    def sent(self) -> int:
        """Return how many requests were answered so far."""
        return self.used - self._first

    def off(self, tokens: int) -> int:
        """Return the tokens of the last prompt beyond the wanted ones; 0 if the server does not count them."""
        return self.counts[-1].tokens - tokens if self.counts else 0

    @property
    def notes(self) -> list[str]:
        """Return what the answers showed that the load has to know."""
        refused = [name for name in refusals.OPTIONAL if name in self.drop - self._omit]
        found = [f"the server refuses {name}: {_INSTEAD.get(name, 'left out')}" for name in refused]
        return [*found, *self._seen]

    async def send(self, prompt_words: int, output_tokens: int) -> decoder.DecodedResponse:
        """Send one request with a new prompt, without fields that the server refuses; return the decoded response."""
        request = await self._request(prompt_words, output_tokens)
        try:
            response = await self._answer(request)
        except _RefusedError as refusal:
            response = await self._with_fewer_fields(request, refusal)
        self.used += 1
        if response.input_tokens:  # 0 is a placeholder: no prompt is empty
            each = round(response.input_tokens / (self._scenario.workload.inputs or 1))
            self.counts.append(text.Counted(prompt_words, each))
        return response

    async def _with_fewer_fields(self, request: Request, refusal: _RefusedError) -> decoder.DecodedResponse:
        """Send a refused request again without optional fields, one more at a time, until it is answered.

        Then put back every field that was not the reason. The refusal is raised where no optional field was it, and at
        once for another status than 400 and 422 or a prompt that is too long.
        """
        status, before = self.status, self.drop
        response = None
        optional = self._optional(request) if status in (400, 422) and not _TOO_LONG.search(refusal.fact) else []
        for name in optional:
            if response is None:
                response = await self._tried(request, self.drop | {name})
        if response is None:
            self.status, self.drop = status, before
            raise refusal
        for name in sorted(self.drop - before):  # the server may take it after all
            drop = self.drop
            if (again := await self._tried(request, drop - {name})) is None:
                self.drop = drop
            else:
                response = again
        return response

    async def _tried(self, request: Request, drop: frozenset[str]) -> decoder.DecodedResponse | None:
        """Send the request without the fields `drop`, now left out always; return the answer, None if refused."""
        self.drop = drop
        try:
            return await self._answer(request)
        except _RefusedError:
            return None

    def _optional(self, request: Request) -> list[str]:
        """Return the optional fields that the request still has, but for those that are the operator's."""
        whole, own = self._body(request, self.drop), self._scenario.target.extra_body
        names = [name for name in refusals.OPTIONAL if name not in own]
        return [name for name in names if self._body(request, self.drop | {name}) != whole]

    async def send_kinds(self, prompt_words: int) -> None:
        """Send one request with the tools of the load, and one for each set of fields that classes have of their own.

        Raise HarnessError if the server does not take one: all such requests of the load would fail.
        """
        tools = self._scenario.workload.tools
        kinds = {tuple(fields): name for name, fields in reversed(self._classes.items())}  # the first of each kind
        if tools and not kinds:
            kinds = {(): ""}
        for fields, name in kinds.items():
            request = await self._request(prompt_words, self.timed_tokens)
            request = msgspec.structs.replace(request, class_=name, tools=tuple(tools) if tools else None)
            try:
                await self._answer(request)
            except _RefusedError as error:
                raise HarnessError(error.fact, place=error.place, way_out=_way_out(name, fields)) from None
            self.used += 1

    async def _request(self, prompt_words: int, output_tokens: int) -> Request:
        """Return a request with a new prompt, made in a thread: a long prompt takes seconds, and Ctrl-C has to work."""
        scenario = self._scenario
        source = Uniform(
            words=self._words,
            prompt_words=prompt_words,
            output_tokens=max(1, output_tokens),
            seed=scenario.workload.seed or 0,
            alike=not self.exact,
        )
        request = await asyncio.to_thread(together(scenario, source).request, self.used)
        if self._images is not None:
            request = msgspec.structs.replace(request, images=self._images.of(self.used))
        return request

    def _body(self, request: Request, drop: frozenset[str]) -> bytes:
        """Return the request's body without these fields."""
        return msgspec.structs.replace(self._codec, drop=drop).encoder.encode(request)

    async def _answer(self, request: Request) -> decoder.DecodedResponse:
        """Send a request and return the decoded answer; drop any field that the server refuses, and send it again.

        Raise HarnessError for a redirect, a failed response, and a refusal that no dropped field mends.
        """
        target, place = self._scenario.target, self.place
        while True:
            content = self._body(request, self.drop)
            reply = await answers.ask(self._api, self._path, content, target, request.output_tokens, place)
            self.status, self.http_version = reply.status, reply.http_version
            self._seen |= dict.fromkeys(reply.notes)
            response = reply.response
            if response is None:
                if (moved := redirected(reply.status, reply.headers, place)) is not None:
                    raise moved
                self._drop_refused(request, reply)
            elif response.error:
                # One token may show no text: it is part of a character, or a mark.
                kind = _RefusedError if response.error == "empty_response" else HarnessError
                fact = f"the first request failed: {response.error} ({own_words(response.message)[:160]})"
                raise kind(fact, place=place, way_out="see the server's log; nothing was loaded")
            else:
                return response

    def _drop_refused(self, request: Request, reply: Reply) -> None:
        """Drop the optional field that an error reply names; raise the error that fits the reply if it names none."""
        place, scenario, status, message = self.place, self._scenario, reply.status, reply.message
        if status >= 400 and (field := refusals.refused_field(message, self._optional(request))) is not None:
            self.drop |= {field}
            return
        if status in (400, 422, 501) and scenario.target.streams and _NO_STREAM.search(message):
            way_out = "--no-stream measures such answers"
            raise HarnessError(server_words(status, message), place=place, way_out=way_out)
        if status in (400, 413, 422):
            way_out = "change it: --input-tokens, --output-tokens, --extra-body"
            if not scenario.decodes:
                way_out = f"serve a model for --api {scenario.target.api} there"
            raise _RefusedError(server_words(status, message), place=place, way_out=way_out)
        if (no := not_served(status, message, place)) is not None:
            raise no
        kind = NotSpokenError if status in (404, 405) else HarnessError
        raise kind(server_words(status, message), place=place, way_out=way_out_of(status, scenario.target))
