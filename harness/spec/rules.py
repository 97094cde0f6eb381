"""What a scenario cannot ask for at once, and what it asks for without effect: two tables, a rule each.

A contradiction is refused wherever it comes from. A field without effect is refused where an option or a file sets it,
and not where it has its default; an option may take the effect of a field of the file, which then falls back to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from harness.base import plugins
from harness.base.errors import HarnessError
from harness.spec import traffic
from harness.spec.choices import APIS, PREFILL_ONLY, ROUND_ROBIN, SESSION
from harness.spec.classes import ClassSpec
from harness.spec.load import Levels, RateSearch, Search
from harness.spec.scenario import HEADER_VALUE, Scenario, Sweep

MOST_LEVELS = 10_000  # most levels of a run, its repeats included; and most cells of a map
MOST_RATE = 1_000_000.0  # requests per second: more than a machine's network stack takes connections
_LONGEST_NAME = 200  # bytes of a scenario's name: a file's has 255, and a folder's adds the time
_HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_FIELD = re.compile(r"\w+(\.\w+)*")  # a path in a request's body
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_API_VERSION = re.compile(r"\?api-version=[-.0-9A-Za-z]*$")
_ONE, _OUT = "leave one of them out", "leave it out"
_NO_KEY = ("an address with a key in it would be stored with the result", "give --api-key-env VARIABLE or --header")
_NO_SESSION = ("no request has a session", "give [workload.session] or --dataset")
_SLO = "give --slo, like ttft_p99=2s"
_ONE_LENGTH = ("it needs prompts and answers of one length", "give numbers")
_TOO_FAST = (
    f"{{}} requests a second are more than the {MOST_RATE:,.0f} that a machine can send",
    f"give {MOST_RATE:,.0f} or less",
)
_OF_ANSWERS = (  # what a request without an answer cannot have
    "workload.session", "workload.node", "workload.tools", "workload.prefix", "workload.dataset", "class_",
    "workload.images", "ramp.probe", "sweep.output_tokens",
)  # fmt: skip

Test = Callable[[Scenario], Any]  # whether a rule is broken, and what by


class Rule(NamedTuple):
    """A field at a path, and when it cannot be; the texts have what `broken` returns in place of their braces."""

    path: str
    broken: Test
    fact: str
    way_out: str
    typed: bool = False  # refused if it was typed; a file may prepare for what another command asks

    def error(self, found: Any, place: str) -> HarnessError:
        values = found if isinstance(found, tuple) else (found,)
        path, fact, way_out = (text.format(*values) for text in (self.path, self.fact, self.way_out))
        return HarnessError(f"{fact} at $.{path}", place=place, way_out=way_out)


def _batch(s: Scenario) -> bool:
    return s.ramp.start == "batch"


def _swept(s: Scenario) -> bool:
    return s.sweep != Sweep()


def _prefill(s: Scenario) -> bool:
    return s.ramp.probe == "prefill"


def _both(test: Test, path: str) -> Test:
    """Return the test whether another holds and the field at the path is set."""
    return lambda s: test(s) and attrgetter(path)(s)


def _twice(path: str) -> Test:
    """Return the test whether the list at the path has a value twice."""
    return lambda s: _repeated(attrgetter(path)(s) or ())


def _of_an_answer(path: str) -> Test:
    """Return the test for an API that decodes nothing, although the field at the path is set."""
    return lambda s: not s.decodes and attrgetter(path)(s) and s.target.api


def _lengths_of_rows(s: Scenario) -> tuple[int, str] | None:
    """Return (number of the class, field) of the first class that sets a length though dataset rows have lengths."""
    usual, fields = ClassSpec(name=""), ("input", "output", "fit")
    found = ((i, field) for i, each in enumerate(s.class_ or ()) for field in fields
             if s.workload.dataset and getattr(each, field) != getattr(usual, field))  # fmt: skip
    return next(found, None)


def _repeated(values: Iterable[Any]) -> bool:
    found = list(values)
    return len(set(found)) < len(found)


def _first(names: Iterable[str]) -> str:
    """Return the first of the names, as it is shown; "" if there is none."""
    return next(iter(names), "")


def _task_table(s: Scenario) -> str:
    """Return the table of a scenario's sessions or graphs; "" if it has none."""
    table = "workload.session" if s.workload.session else "workload.node" if s.workload.node else "workload.dataset"
    return table if s.has_tasks else ""


def _named(s: Scenario) -> bool:
    """Return whether a result folder can have the name, and lie where it is put."""
    plain = s.name.isprintable() and "/" not in s.name and not s.name.startswith(".")
    return plain and 0 < len(s.name.encode()) <= _LONGEST_NAME


def _known(api: str) -> bool:
    """Return whether an API is Knee's own, or one that another package adds."""
    return api in APIS or api in plugins.names(plugins.DIALECTS)


def _may_carry_a_key(address: str | None) -> bool:
    """Return whether an address may carry a secret: of queries only Azure's `api-version` is known to be none.

    >>> _may_carry_a_key("https://me:key@host"), _may_carry_a_key("https://host?api-version=2024-10-21")
    (True, False)
    """
    address = _API_VERSION.sub("", address or "")
    return not address.startswith("unix:") and re.search("[@?#]", address) is not None


def _too_fast(s: Scenario) -> str:
    """Return the highest rate of an open loop where no machine can send as fast."""
    peak = traffic.parse(s.ramp.arrivals).peak * max(s.load.loads if s.load.is_open else (), default=0.0)
    return f"{peak:g}" if peak > MOST_RATE else ""


def _own_rates(s: Scenario) -> bool:
    how = traffic.parse(s.ramp.arrivals)
    return how.speed is not None or how.own_rate is not None


def _replayed(s: Scenario) -> bool:
    """Return whether a dataset's requests, or sessions, come at the dataset's times; a search has other ones."""
    return bool(s.workload.dataset) and not s.ramp.search_rate and traffic.parse(s.ramp.arrivals).speed is not None


def _of_tokens(s: Scenario) -> tuple[str, str] | None:
    """Return a limit on a time that only tokens have, and the API that sends none."""
    return None if s.decodes else next(((each, s.target.api) for each in s.slo if not each.startswith("e2e")), None)


def _too_many_levels(s: Scenario) -> tuple[str, str] | None:
    """Return the levels, if they are more than a run keeps, and how often it may repeat them."""
    levels = max(1, len(s.ramp.levels or s.ramp.rates or ()))
    most = f"{max(1, MOST_LEVELS // levels):,}"
    return (f"{levels * s.ramp.repeat:,}", most) if levels * s.ramp.repeat > MOST_LEVELS else None


def _too_many_cells(s: Scenario) -> str:
    sweep = s.sweep
    axes = (sweep.input_tokens, sweep.output_tokens, sweep.inputs, sweep.max_num_seqs, sweep.urls)
    cells = math.prod(max(1, len(axis or ())) for axis in axes)
    return f"{cells:,}" if cells > MOST_LEVELS else ""


_CONTRADICTIONS: tuple[Rule, ...] = (
    Rule("name", lambda s: not _named(s), "it cannot name a folder",
         f"one line without '/', not begun by '.', at most {_LONGEST_NAME} bytes"),
    # The endpoint; no secret may be where it would be stored.
    Rule("target.api", lambda s: "" if _known(s.target.api) else s.target.api,
         "unknown api '{}'", f"known: {', '.join(APIS)}"),
    Rule("target.url", lambda s: _may_carry_a_key(s.target.url), *_NO_KEY),
    Rule("target.urls", lambda s: any(map(_may_carry_a_key, s.target.urls or ())), *_NO_KEY),
    Rule("target.url", lambda s: s.target.urls and s.target.url != s.target.urls[0],
         "url and urls exclude each other", "leave url out"),
    Rule("target.urls", _twice("target.urls"), "a url is given twice", "write each url once"),
    Rule("target.api", lambda s: s.target.url == "sim:" and not s.decodes,
         "'sim:' generates text and serves no other API", "give the address of a server"),
    Rule("target.urls", lambda s: "sim:" in (s.target.urls or ()),
         "sim: is one endpoint", "start several by `knee sim`, give their urls"),
    Rule("target.urls", lambda s: s.target.urls and _swept(s), "a level map has one server a cell", "leave urls out"),
    Rule("target.metrics_url", lambda s: len(s.target.urls or ()) > 1 and s.target.metrics_url,
         "it is one page, and there are several replicas", "leave it out: each replica's /metrics is read"),
    Rule("hooks.stop_replica", lambda s: s.hooks and s.hooks.stop_replica and len(s.target.every_url) < 2,
         "there is no other replica", "give several --url"),
    Rule("target.session_header", lambda s: _HEADER_NAME.fullmatch(s.target.session_header or "X") is None,
         "it is no header's name", "write it like X-Session-Id"),
    Rule("target.versus", lambda s: s.target.versus == (s.target.balance or ROUND_ROBIN),
         "the replicas are balanced so already", "name another way"),
    Rule("target.metrics_url", lambda s: _may_carry_a_key(s.target.metrics_url), *_NO_KEY),
    Rule("target.pool_metrics", lambda s: len(s.target.urls or ()) > 1 and s.target.pool_metrics,
         "they are of one proxy, and there are several replicas", "leave them out: each replica's /metrics is read"),
    Rule("target.pool_metrics", lambda s: any(map(_may_carry_a_key, (s.target.pool_metrics or {}).values())), *_NO_KEY),
    Rule("target.exporters", lambda s: any(map(_may_carry_a_key, s.target.exporters or ())), *_NO_KEY),
    Rule("target.omit", lambda s: any(_FIELD.fullmatch(name) is None for name in s.target.omit or ()),
         "it names no field", "write it like ignore_eos"),
    Rule("target.omit", lambda s: _first(name for name in s.target.omit or () if name in s.target.extra_body),
         "extra_body has {}", _ONE),
    # A key that was written here by mistake is not repeated.
    Rule("target.api_key_env", lambda s: s.target.api_key_env and not _VARIABLE.fullmatch(s.target.api_key_env),
         "it is not the name of a variable", "export MY_KEY=… and give MY_KEY"),
    Rule("target.insecure", lambda s: s.target.insecure and s.target.ca_file, "insecure ignores ca_file", _ONE),
    Rule("target.headers", lambda s: any(_HEADER_NAME.fullmatch(name) is None for name in s.target.headers),
         "a header has a name", "write it Name: value"),
    Rule("target.headers.{}",
         lambda s: _first(name for name, value in s.target.headers.items() if not HEADER_VALUE.fullmatch(value)),
         "a header is one line of ASCII", "encode it"),
    # The load.
    Rule("workload.image_size", lambda s: s.workload.image_size and not s.workload.images,
         "a size, but no images", "write images = 1"),
    Rule("ramp.arrivals", lambda s: traffic.parse(s.ramp.arrivals).speed is not None and not s.workload.dataset,
         "no dataset has times to replay", "give --dataset FILE"),
    Rule("ramp.arrivals", lambda s: s.ramp.levels is not None and _own_rates(s),
         "arrivals with rates of their own are an open loop: levels exclude them", _ONE),
    Rule("ramp.arrivals", lambda s: _own_rates(s) and _too_fast(s), *_TOO_FAST),
    Rule("ramp.rates", _too_fast, *_TOO_FAST),
    Rule("ramp.think", lambda s: s.ramp.think and s.load.is_open, "an open loop has no think time", _ONE),
    Rule("ramp.start", lambda s: _batch(s) and s.load.is_open, "an open loop has no batches", _ONE),
    Rule("ramp.think", lambda s: _batch(s) and s.ramp.think, "a batch follows the one before at once", _OUT),
    Rule("ramp.workers", lambda s: _batch(s) and s.ramp.workers not in (None, 1),
         "static batches come from one worker", _OUT),
    Rule("{}", lambda s: s.load.is_open and not _replayed(s) and _task_table(s),
         "sessions and graphs are closed loops so far", "give --levels in place of --rate"),
    Rule("ramp.start", lambda s: _batch(s) and s.has_tasks,
         "a batch has single requests, not sessions or graphs", _OUT),
    Rule("ramp.think", lambda s: s.ramp.think and s.has_tasks,
         "sessions and graphs have pauses of their own", "write them there"),
    Rule("class", lambda s: s.class_ and s.has_tasks and not s.workload.dataset,
         "sessions and graphs are of one class so far", "leave [[class]] out"),
    Rule("ramp.rates", lambda s: s.ramp.rates is not None and s.ramp.levels is not None,
         "levels and rates exclude each other", _ONE),
    Rule("ramp.rates", _twice("ramp.rates"), "a rate is given twice", "use repeat instead"),
    Rule("ramp.levels", _twice("ramp.levels"), "a level is given twice", "use repeat instead"),
    # The requests.
    *(Rule(f"workload.{key}", _both(attrgetter("workload.dataset"), f"workload.{key}"),
           "a dataset has prompts of its own", _ONE) for key in ("prefix", "session", "node")),
    Rule("class[{}].{}", _lengths_of_rows, "a dataset has requests of its own", _OUT),
    Rule("ramp.probe", lambda s: s.ramp.probe and not s.one_length, *_ONE_LENGTH),
    Rule("sweep", lambda s: _swept(s) and not s.one_length, *_ONE_LENGTH),
    *(Rule("ramp.probe", _both(_prefill, f"workload.{key}"),
           f"its prompts have no {key}", f"leave workload.{key} out") for key in ("prefix", "tools")),
    # What is searched for.
    Rule("ramp.search_rate", lambda s: s.ramp.search_rate and (s.ramp.levels, s.ramp.rates) != (None, None),
         "a search chooses its own rates: levels and rates exclude it", _ONE),
    Rule("ramp.search_rate", lambda s: s.ramp.search_rate and not s.has_limits, "no SLO to search by", _SLO),
    Rule("ramp.duration", lambda s: s.ramp.duration and len(s.load.loads) > 1,
         "a soak has one load", "give one level or rate, or none: it is then a share of the knee"),
    Rule("ramp.duration", lambda s: s.ramp.duration and s.ramp.level_seconds,
         "level_seconds and duration exclude each other", _ONE),
    Rule("ramp.duration", lambda s: s.ramp.duration and s.ramp.repeat > 1,
         "a soak is measured once", "leave repeat out, and give a longer duration"),
    Rule("ramp.duration", lambda s: s.ramp.duration and (s.ramp.probe or s.ramp.search_rate),
         "a soak has one load", "leave the probe or the search out"),
    Rule("ramp.duration", lambda s: s.ramp.duration and _swept(s), "a soak has one load", "leave the sweep out"),
    Rule("ramp.probe", lambda s: s.ramp.probe and s.load.is_open, "a probe holds levels: rates exclude it", _ONE),
    # The level map.
    *(Rule(f"sweep.{axis}", _twice(f"sweep.{axis}"),
           "a value is given twice", "write each value once")
      for axis in ("input_tokens", "output_tokens", "max_num_seqs", "inputs")),
    Rule("sweep.max_num_seqs", lambda s: s.sweep.max_num_seqs and s.target.url not in (None, "sim:"),
         "no server but sim: takes it from here", "start a server for each setting: sweep.urls"),
    Rule("sweep.urls", lambda s: s.sweep.max_num_seqs and s.sweep.urls,
         "max_num_seqs and urls are both the server's setting", _ONE),
    Rule("sweep.urls", lambda s: not all(name.strip() and url.strip() for name, url in s.sweep.urls.items()),
         "a setting has a name and a url", "write NAME = 'URL'"),
    Rule("sweep.urls", lambda s: any(map(_may_carry_a_key, s.sweep.urls.values())), *_NO_KEY),
    Rule("sweep.urls", lambda s: _repeated(s.sweep.urls.values()), "a url is given twice", "write each url once"),
    Rule("sweep", lambda s: _swept(s) and s.ramp.probe,
         "a level map has a knee a cell, a probe none", "leave [sweep] or ramp.probe out"),
    # Sizes; this machine's own limits are checked when a run begins.
    Rule("ramp.repeat", _too_many_levels,
         f"{{0}} levels are more than the {MOST_LEVELS:,} that a run keeps in memory", "give {1} or less"),
    Rule("sweep", _too_many_cells,
         f"{{}} cells are more than the {MOST_LEVELS:,} that a level map can have", "sweep fewer values"),
    # APIs that decode nothing.
    *(Rule(path.rstrip("_"), _of_an_answer(path),
           "a request of {} holds texts of their own, and gets no answer", _OUT) for path in _OF_ANSWERS),
    Rule("slo.{0}", _of_tokens, "{1} sends no tokens, so nothing has this time", "limit e2e_p99"),
    # Canaries.
    Rule("quality", lambda s: s.quality and not s.decodes, "this API generates no answer", _OUT),
    Rule("quality", lambda s: s.quality and s.has_tasks, "sessions and graphs have no place for canaries so far", _OUT),
    Rule("quality", lambda s: s.quality and s.ramp.probe, "a probe has lengths of its own", _OUT),
)  # fmt: skip


def _sessions(s: Scenario) -> bool:
    """Return whether requests may have a session."""
    return s.has_tasks or bool(s.workload.dataset)


def _own(field: str) -> Test:
    """Return the test whether every node of a graph has a length of its own."""
    return lambda s: s.workload.node and all(getattr(node, field) is not None for node in s.workload.node)


_GIVEN = "it ends a search, and a load that is given leaves nothing to search"
_OWN_LENGTHS = ("classes have lengths of their own", _OUT)
WITHOUT_EFFECT: tuple[Rule, ...] = (
    # The endpoint.
    *(Rule(f"target.{name}", lambda s: not s.target.urls, "there is one server", "give --url several times")
      for name in ("balance", "versus", "allow_different_replicas")),
    Rule("target.balance", lambda s: s.target.balance == SESSION and not _sessions(s), *_NO_SESSION),
    Rule("target.versus", lambda s: s.target.versus == SESSION and not _sessions(s), *_NO_SESSION),
    Rule("target.session_header", lambda s: not _sessions(s), *_NO_SESSION),
    Rule("target.stream", lambda s: not s.decodes, "an answer of this API comes in one piece", _OUT),
    *(Rule(f"sim.{name}", lambda s: s.target.url not in (None, "sim:"),
           "it is of the simulated endpoint", "leave it out, or --url sim:", typed=True)
      for name in ("profile", "speed")),
    # The load.
    Rule("ramp.max_concurrency", lambda s: isinstance(s.load, Levels),
         "it bounds a search, and --levels leaves nothing to search", _ONE, typed=True),
    Rule("ramp.quick", lambda s: s.load.is_given, _GIVEN, _ONE),
    Rule("ramp.keep_going", lambda s: not s.load.is_given,
         "a ramp that chooses its levels ends by itself", "give --levels or --rate"),
    Rule("ramp.knee_share", lambda s: not (s.ramp.duration and isinstance(s.load, Search)),
         "it is the load of a soak without one", "give --duration and no --levels, or leave it out"),
    Rule("ramp.arrivals", lambda s: not s.load.is_open,
         "a closed loop sends a request when the one before has ended", "give --rate, or leave it out"),
    Rule("ramp.start", lambda s: s.load.is_open, "an open loop has no slots that begin", _ONE),
    Rule("ramp.precision", lambda s: s.ramp.level_seconds,
         "a window of level_seconds ends after that time, however precise it is", _ONE),
    Rule("ramp.precision", lambda s: s.ramp.duration and s.load.is_given,
         "a soak's window ends after its duration, however precise it is", _ONE),
    Rule("ramp.precision", lambda s: s.load.is_open and traffic.parse(s.ramp.arrivals).period_s is not None,
         "a window has whole periods of the arrivals, however precise it is", _ONE),
    Rule("ramp.max_ttft", lambda s: isinstance(s.load, RateSearch),
         "a search for a rate ends by its limits alone", "give --slo ttft_p99=TIME"),
    Rule("ramp.max_ttft", lambda s: not s.decodes, "this API sends no tokens, so nothing has this time", _OUT),
    Rule("ramp.slo_confidence", lambda s: s.ramp.slo_confidence and not s.has_limits, "no SLO to decide", _SLO),
    Rule("ramp.slo_fail", lambda s: not s.has_limits, "no SLO to miss", _SLO),
    Rule("ramp.max_dollars", lambda s: s.hardware.price is None and s.hardware.price_per_mtok is None,
         "no price to count by", "give --price or --price-per-mtok"),
    # The requests.
    *(Rule(f"workload.{field}", lambda s: s.class_ and not s.workload.dataset, *_OWN_LENGTHS)
      for field in ("input_tokens", "output_tokens")),
    *(Rule(f"workload.{field}", attrgetter(f"sweep.{field}"),
           f"sweep.{field} has the lengths", _ONE, typed=True)
      for field in ("input_tokens", "output_tokens", "inputs")),
    *(Rule(f"workload.{field}", _own(field), "nodes have lengths of their own", _OUT)
      for field in ("input_tokens", "output_tokens")),
    Rule("workload.tool_time_scale", lambda s: not s.has_tasks, "no request waits for a tool",
         "give a scenario with sessions, or --dataset with sessions"),
    Rule("workload.input_tokens", lambda s: s.workload.session, "messages of a session have user_tokens", _OUT),
    Rule("workload.input_tokens", lambda s: s.workload.dataset, "a dataset has prompts of its own", _ONE),
    Rule("workload.input_tokens", lambda s: s.ramp.probe == "decode", "a decode probe has prompts of its own", _OUT),
    Rule("workload.output_tokens", lambda s: not s.decodes, "a request of this API gets no answer", _OUT),
    Rule("workload.output_tokens", lambda s: s.ramp.probe == "prefill", "a prefill probe asks for one token", _OUT),
    Rule("workload.tools", lambda s: s.workload.dataset and not s.has_tasks, "a dataset has prompts of its own", _ONE),
    *(Rule(f"{table}.inputs", lambda s: s.decodes,
           "an answer is generated to one prompt", f"give --api, one of: {', '.join(PREFILL_ONLY)}")
      for table in ("workload", "sweep")),
    # The hardware. Where no server is named one is started, on these cores.
    Rule("hardware.host_cpus", lambda s: s.hardware.gpu != "host" and s.target.url is not None,
         "it is used with gpu = host only", "give --gpu host"),
)  # fmt: skip


def must_agree(scenario: Scenario, place: str) -> None:
    """Refuse a scenario that contradicts itself, or is larger than what can be measured."""
    for rule in _CONTRADICTIONS:
        if found := rule.broken(scenario):
            raise rule.error(found, place)


def with_effect(scenario: Scenario, base: Scenario, typed: Collection[str], place: str) -> Scenario:
    """Return the scenario without fields that lost their effect; raise HarnessError for others without an effect.

    `typed` are the paths of what was laid over `base`. A field of the base that had an effect there, and has none
    with what was typed, falls back to its default.
    """
    for rule in WITHOUT_EFFECT:
        if not rule.broken(scenario):
            continue
        if rule.path in typed:
            raise rule.error("", place)
        table, _, name = rule.path.partition(".")
        owner = getattr(scenario, table)
        usual = getattr(type(owner)(), name)
        if rule.typed or getattr(owner, name) == usual:
            continue
        if rule.broken(base):
            raise rule.error("", place)
        owner = msgspec.structs.replace(owner, **{name: usual})
        scenario = msgspec.structs.replace(scenario, **{table: owner})
    return scenario
