"""The endpoint of a run: where it is (`Address`), and all that the checks found of it (`Endpoint`)."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from harness.base.errors import HarnessError, misspelled
from harness.data.manifest import CacheAudit, UnloadedAnswers
from harness.dialects import DIALECTS
from harness.load.messages import Codec, Replica
from harness.load.transport import Target
from harness.spec.scenario import Scenario
from harness.spec.work import Unit
from harness.workload import probe, shape
from harness.workload import source as sources
from harness.workload.canaries import Canary
from harness.workload.source import Source
from harness.workload.text import COMMON, PromptWords

_MODEL = "{model}"  # placeholder in a dialect's path
_CLEAR = 0.95  # share of the context, as a margin where words may be more than one token each


class Address(msgspec.Struct, frozen=True):
    """Where the endpoint is; `base`, which is shown and stored, has neither path nor secrets."""

    base: str
    host: str
    port: int
    prefix: str
    scheme: str = "http"
    uds: str = ""  # path of a Unix socket
    root: str = "/v1"  # stands before `/models` and the API's path
    query: str = ""  # `?api-version=…`, sent with every request
    api: str = ""  # the API whose whole path the URL has
    model: str = ""  # model that the API's path names

    @property
    def place(self) -> str:
        """Return the address as it is shown and stored, with its path before the API's."""
        return self.base + self.prefix

    def path(self, of: str) -> str:
        """Return the whole path of one of the server's pages."""
        return self.prefix + of + self.query

    def api_path(self, api: str, model: str | None) -> str:
        """Return the URL path of an API at this address; raise HarnessError if it needs a model and none is given."""
        dialect = DIALECTS[api]
        if model is None and _MODEL in dialect.path:
            raise HarnessError("its path names the model", place=f"--api {api}", way_out="give --model")
        return self.path((self.root and dialect.root) + dialect.path.replace(_MODEL, quote(model or "", safe="/")))


def address(url: str, place: str = "--url") -> Address:
    """Return the parts of a URL; raise HarnessError if it cannot be measured.

    The API's path at its end names the API and is taken off; Azure's deployments have no `/v1`.

    >>> address("http://localhost:8000/v1").base, address("https://[::1]/api/v1").prefix
    ('http://localhost:8000', '/api')
    >>> address("http://h/v1/completions").api, address("https://h/openai/deployments/d?api-version=1").root
    ('completions', '')
    >>> address("unix:/run/server.sock").uds
    '/run/server.sock'
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (parts.hostname or "").encode("idna").decode("idna")
    except UnicodeError:
        raise HarnessError("not a host name", place=place, way_out="write it like http://host:8000") from None
    except ValueError as error:
        raise HarnessError(str(error), place=place, way_out="write it like http://host:8000") from None
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Address(f"unix:{parts.path}", "localhost", 80, "", uds=parts.path)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HarnessError(
            "not an http address",
            place=url,
            way_out="write it like http://host:8000, https://host, unix:/run/server.sock, or sim: for the simulator",
        )
    host = parts.hostname
    shown = f"[{host}]" if ":" in host else host
    prefix, root = parts.path.rstrip("/"), "/v1"
    _check_spelling(prefix, place)
    prefix, api, model = _named(prefix)
    if (api and DIALECTS[api].root and not prefix.endswith("/v1")) or "/openai/deployments/" in prefix:
        root = ""
    query = f"?{parts.query}" if parts.query else ""
    prefix = prefix.removesuffix("/v1")
    return Address(
        f"{parts.scheme}://{shown}:{port}", host, port, prefix, parts.scheme,
        root=root, query=query, api=api, model=model,
    )  # fmt: skip


def _check_spelling(path: str, place: str) -> None:
    """Raise HarnessError for a URL's path that ends like one of an API, but for a letter."""
    ends = {root + dialect.path for dialect in DIALECTS.values() for root in {"", dialect.root}}
    for parts in (3, 2):  # one part alone may be any prefix
        end = "/" + "/".join(path.split("/")[-parts:]) if path.count("/") >= parts else ""
        if end in ends:
            return
        if right := misspelled(end, sorted(ends)):
            raise HarnessError(f"no API has the path {end}", place=place, way_out=f"did you mean '{right}'?")


def _named(path: str) -> tuple[str, str, str]:
    """Return (path without the API's own part, API, model) of a URL's path that may end in an API's path; else "".

    >>> _named("/a/v2/models/m/generate_stream"), _named("/generate_stream"), _named("/v1")
    (('/a', 'triton', 'm'), ('', 'tgi', ''), ('/v1', '', ''))
    """
    for name, dialect in DIALECTS.items():
        before, _, after = dialect.path.partition(_MODEL)
        if after and path.endswith(after) and before in path:
            prefix, _, model = path.removesuffix(after).rpartition(before)
            return prefix, name, unquote(model)
        if not after and path.endswith(dialect.path):
            return path.removesuffix(dialect.path), name, ""
    return path, "", ""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """What only goes over the wire: it may hold secrets, so nothing of it is shown or stored."""

    target: Target
    codec: Codec  # contains the model as requests name it
    figures: Target | None = None  # page of the server's figures; None: it publishes none
    exporters: tuple[Target, ...] = ()  # pages of the GPUs and machines that serve
    pools: tuple[tuple[str, Target], ...] = ()  # pages of servers behind the endpoint, with their names
    secrets: tuple[str, ...] = ()  # to be removed from texts of the server


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is measured, by the server's list."""

    name: str = ""  # name that is shown and stored
    listed: bool = True  # the list has it, or there is no list
    models: tuple[str, ...] = ()  # models on the list
    max_context: int | None = None  # tokens of prompt and answer together; None: unknown


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """What prompts are made of, and what they come to by the server's count."""

    words: tuple[str, ...] = COMMON
    exact: bool = False  # whether each word is one token of the named tokenizer
    tokenizer_json: str = ""  # the named tokenizer's; "" without one
    count: int | None = None  # words of the mean prompt; None: not known yet
    tokens: int | None = None  # tokens of the last check's prompt; None: the server gives no count
    tokens_per_word: float = 1.0
    used: int = 0  # the number of the first prompt that no check has used
    rows: str = ""  # path of the table of the dataset's rows; "": there is none
    canaries: tuple[Canary, ...] = ()  # includes their first answers' digests

    @property
    def added_tokens(self) -> int:
        """Return the tokens of a prompt beyond its words (a chat template); 0 if the server gives no count."""
        return 0 if self.tokens is None else self.tokens - round((self.count or 0) * self.tokens_per_word)

    def words_for(self, tokens: int) -> int:
        """Return how many words make a prompt of `tokens` tokens, by the checks' counts; at least 1.

        words = (tokens - tokens that the server adds) / tokens per word; both are from the checks, and the same for
        every length.
        """
        return max(1, round((tokens - self.added_tokens) / self.tokens_per_word))


class Published(msgspec.Struct, frozen=True, kw_only=True):
    facts: dict[str, Any] = {}  # its name, its version, its limits
    cache_config: dict[str, str] = {}  # vLLM's


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """What one request alone came to."""

    e2e_s: float = 0.0
    itl_s: float | None = None
    canaries: UnloadedAnswers | None = None  # what they were answered
    cache: CacheAudit | None = None  # what the prefix cache gave


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of the endpoint; each check fills in its part."""

    address: Address
    wire: Wire
    unit: Unit = Unit.OUTPUT_TOKENS  # what throughput counts
    http_version: str = ""  # version of its answers
    model: Model = Model()
    prompts: Prompts = Prompts()
    published: Published = Published()
    alone: Alone = Alone()
    notes: tuple[str, ...] = ()
    replicas: tuple[Endpoint, ...] = ()  # what the checks of each of several found, this one's first

    @property
    def api(self) -> str:
        return self.wire.codec.api

    @property
    def servers(self) -> tuple[Replica, ...]:
        """Return the server, or each of several that share the load, as the workers reach it."""
        return tuple(
            Replica(
                replica.address.place if self.replicas else replica.address.base,
                replica.wire.target,
                replica.address.path(f"{replica.address.root}/models"),
            )
            for replica in self.replicas or (self,)
        )


def source(scenario: Scenario, prompts: Prompts) -> Source:
    """Return the source of a run's requests or tasks, whose prompts have as many words as the checks found right."""
    words = PromptWords(
        words=prompts.words,
        count=prompts.count,
        added_tokens=prompts.added_tokens,
        tokens_per_word=prompts.tokens_per_word,
        exact=prompts.exact,
    )
    return sources.of(scenario, words, prompts.rows, prompts.canaries)


def probe_lengths(scenario: Scenario, endpoint: Endpoint) -> list[int]:
    """Return the prompt lengths of a prefill probe that fit into the context, tokens, rising; none for other runs."""
    if scenario.ramp.probe != probe.PREFILL:
        return []
    mean, prompts = shape.of(scenario).mean(), endpoint.prompts
    fewest = prompts.added_tokens + math.ceil(probe.FEWEST_WORDS * prompts.tokens_per_word)
    most = None
    if endpoint.model.max_context is not None:
        room = endpoint.model.max_context - round(mean.output_tokens)
        most = room if prompts.exact else int(_CLEAR * room)
    return probe.lengths(round(mean.input_tokens), fewest, most)
