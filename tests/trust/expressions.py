"""Every regular expression of the harness with the text that costs it most, timed at two lengths.

An expression that gives back what it took can cost the square of a text's length: 20 kB of a server's page, seconds
in which nobody hears Ctrl-C. `TABLE` lists each by its file and source; `missing` walks the code for one that is not
listed. Left out: texts that no outsider can make long (a version's, a field's of our own files).
"""

from __future__ import annotations

import ast
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.base import secrecy, terminal, units
from harness.base.errors import HarnessError
from harness.cli import familiar
from harness.dialects import chunk, refusals, tokens, unlisted
from harness.load import http1
from harness.observe import server
from harness.predict import catalog, quantisation
from harness.report import markdown, page
from harness.results import levelmap, readers
from harness.results.readers import level, table
from harness.run.launch import answers, first_requests
from harness.run.stacks import endpoint
from harness.spec import reuse, rules, scenario
from harness.workload.dataset import dataset, files

HARNESS = Path(__file__).parents[2] / "harness"
LENGTH = 100_000  # characters, or as many as its input may have
LONGER = 8  # times the shorter text
WORST = 24.0  # times the shorter text's time: 8 where time grows with the length, 64 where it grows with its square
_SHORTEST_S = 20e-6  # below this a time is the call's own


_READERS = "results/readers/__init__.py"


class Expression(NamedTuple):
    """An expression, the file that it is in, how it is used there, and the worst text of a length."""

    file: str
    source: str  # begins with this
    use: Callable[[Any], Any]
    worst: Callable[[int], Any]
    length: int = LENGTH


def times(text: str, *, before: str = "", after: str = "") -> Callable[[int], str]:
    """A text again and again, to a length."""
    return lambda n: before + text * ((n - len(before) - len(after)) // len(text)) + after


def _bytes(made: Callable[[int], str]) -> Callable[[int], bytes]:
    return lambda n: made(n).encode()


def _consumed(found: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Any]:
    return lambda text: sum(1 for _ in found(text))


def _refusing(use: Callable[[str], Any]) -> Callable[[str], Any]:
    """What refuses its text does so by the project's own error."""

    def call(text: str) -> None:
        with contextlib.suppress(HarnessError):
            use(text)

    return call


def _typed(text: str) -> list[bool]:
    """Whether a value is another tool's, by each of the tools' options that say so."""
    rows = [row for tool in familiar.tools() for row in tool.options.values()]
    return [row.fits(text) for row in rows if row.when]


def _valued(text: str) -> list[bool]:
    """Whether a value has an equal here, by each of the tools' options whose values are few."""
    rows = [row for tool in familiar.tools() for row in tool.options.values()]
    return [row.words(text) is not None for row in rows if row.values]


_a, _words = times("a"), times("a word ")
_alike = [found for found, _ in quantisation._ALIKE]

TABLE = (
    Expression(
        "run/launch/first_requests.py", "context|too long", first_requests._TOO_LONG.search, times("contex"),
    ),
    Expression(
        "run/launch/answers.py", "connection error", answers._NO_UPSTREAM.search, times("connection "),
    ),
    Expression("run/stacks/endpoint.py", r"(?:\([^)]*\) )?(?:ERROR", endpoint._RAISED.match, times("a.")),
    Expression("results/levelmap.py", "[A-Za-z0-9][A-Za", levelmap.FOLDER.fullmatch, times("a", after="!")),
    Expression("dialects/tokens.py", "reason|think|", tokens._THOUGHT.search, times("reaso")),
    Expression("dialects/chunk.py", " - at ", chunk._AT.search, times(" - at `$a")),
    Expression("dialects/chunk.py", r"\.([^", chunk._STEP.findall, times("[1")),
    Expression(
        "dialects/chunk.py", r"\d{1,18}", chunk._COUNT.fullmatch, times("0", before="1.", after="!"),
    ),
    Expression("dialects/refusals.py", "unsupported|not", refusals._REFUSED.search, times("un")),
    Expression(
        "dialects/refusals.py", r"[\W_]", lambda text: refusals.refused_field(text, list(refusals.OPTIONAL)),
        times("unknown max_token "),
    ),
    Expression(
        "load/http1.py", r"HTTP/1\.", http1._STATUS_LINE.fullmatch, _bytes(times(" ", before="HTTP/1.1 200")), 65_536,
    ),
    Expression(
        "load/http1.py", r"\r\n[ \t]+", lambda text: http1._BLANKS.sub(b" ", text), _bytes(times("\r\n \t")), 65_536,
    ),
    Expression(
        "load/http1.py", "([0-9A-Fa-f]{1,16})", http1._CHUNK_LENGTH.fullmatch,
        _bytes(times(" ", before="f" * 16, after="!")),
    ),
    Expression(
        "observe/server.py", r"\n([a-zA-Z_:]", server.figures,
        lambda n: "vllm:x{" + 'a="' * (n // 6) + "\nvllm:num_requests_running" + "{} " * (n // 12) + "}" + " " * n,
    ),
    Expression(
        "observe/server.py", r"[ \t,{]*+([a-zA-Z_]", server.cache_config,
        lambda n: "vllm:cache_config_info{" + "a" * (n // 2) + ", " * (n // 4) + "} 1",
    ),
    Expression(
        "predict/catalog.py", "([1-7])g", catalog._MIG.fullmatch, times("1", before="1g."),
    ),
    Expression("predict/quantisation.py", r"^(model\.)?", _alike[0].search, times("model.")),
    Expression("predict/quantisation.py", r"\b(block_sparse_moe", _alike[1].search, times("block_sparse_mo.")),
    Expression("predict/quantisation.py", r"\bmlp\.", _alike[2].search, times("mlp.route.")),
    Expression("predict/quantisation.py", r"\bshared_experts", _alike[3].search, times("shared_expert.")),
    Expression("predict/quantisation.py", "vis|image", quantisation._ELSEWHERE.search, times("shared_expert_gat")),
    Expression("report/markdown.py", "([", markdown.literal, times("\\_")),
    Expression("report/markdown.py", r"^(\d+", markdown.literal, times("1")),
    Expression(
        "results/readers/level.py", r"\d{1,3}(,\d{3})+", level._THOUSANDS.fullmatch,
        times(",123", before="1", after="!"),
    ),
    Expression("results/readers/table.py", r"-?[\d.]*\d,\d+", table._COMMA.fullmatch, times("1.", after=",!")),
    Expression("spec/reuse.py", "([1-9][0-9]{0,3})x", reuse._IMAGE_SIZE.fullmatch, times("1")),
    Expression("spec/reuse.py", "[0-9]+(?:", _refusing(reuse.pauses), times("1")),
    Expression("spec/rules.py", "[-!#$%&", rules._HEADER_NAME.fullmatch, times("a", after=" ")),
    Expression("spec/scenario.py", "[\\t -~]*", scenario.HEADER_VALUE.fullmatch, times("a", after="\n")),
    Expression("spec/rules.py", "[A-Za-z_][A-Z", rules._VARIABLE.fullmatch, times("a", after="-")),
    Expression("spec/rules.py", r"\w+(\.\w+)*", rules._FIELD.fullmatch, times("a.", after="!")),
    Expression("spec/rules.py", r"\?api-version", rules._API_VERSION.search, times("?api-version=1")),
    Expression("spec/rules.py", "[@?#]", re.compile("[@?#]").search, _a),
    Expression("base/secrecy.py", "[A-Z]?[a-z]+", secrecy._WORD.findall, times("A", after="a")),
    Expression("base/secrecy.py", r"(\S+ )?env:", secrecy._VARIABLE.fullmatch, times("a", after=" env:!")),
    Expression(
        "base/secrecy.py", "//([^@/]*)@", lambda text: list(secrecy.of_proxies({"http_proxy": text})), times("//a"),
    ),
    Expression("base/secrecy.py", r'rf"(?<!\w)', lambda text: secrecy.redact(text, ["short"]), times("shor ")),
    Expression("base/terminal.py", "[\0-\x08", terminal.visible, times("\x1b")),
    Expression("base/terminal.py", r"[\t\n\r]+", terminal.clean, times("\n")),
    Expression("base/units.py", r"\s*+([0-9]++", _refusing(units.seconds), times(" ", before="1", after="!")),
    Expression("base/units.py", r"[\s,]+", _refusing(units.goodput), times(" ,")),
    Expression("base/units.py", r",\s*+|(?<![\s,])\s++", _refusing(units.slo), times(" ", before="a")),
    Expression("base/units.py", r"[0-9][0-9.]*", re.compile(r"[0-9][0-9.]*").search, times("1.", before="x")),
    Expression("base/units.py", r"[\w.-]+", re.compile(r"[\w.-]+").fullmatch, times("a.-", after="!")),
    # Of a command line, which its own operator typed.
    Expression(
        "cli/familiar.py", "-[0-9.]+|-", re.compile(r"-[0-9.]+|-").fullmatch, times("1.", before="-", after="!"),
    ),
    Expression("cli/familiar.py", "self.when", _typed, times("a", after="!")),
    Expression("cli/familiar.py", "pattern", _valued, times("1", before="D(", after="!")),
    Expression("cli/familiar.py", "([^:=]+)[:=]", re.compile(r"([^:=]+)[:=](.*)").fullmatch, times("a")),
    Expression("cli/theirs.py", ":.*", lambda text: re.sub(r":.*", ": …", text), times(":a")),
    Expression("cli/theirs.py", "([0-9.]*)(.*)", re.compile(r"([0-9.]*)(.*)").fullmatch, times("1.", after="s")),
    Expression("predict/catalog.py", "([0-9]{1,9}", catalog._QUANTITY.fullmatch, times("1", after="!")),
    Expression("predict/quantisation.py", r"\bindexers_proj", _alike[4].search, times("indexers_pro.")),
    Expression("predict/quantisation.py", r"\battn\b", _alike[5].search, times("att.")),
    Expression("predict/quantisation.py", r"\bffn\b", _alike[6].search, times("ff.")),
    Expression("predict/quantisation.py", r"\.experts\.", quantisation._EXPERT.search, times(".experts.1", after="!")),
    Expression("report/page.py", "f\" ?(", page._ASSUMED.search, times(" ;")),
    Expression("report/page.py", r"-?\d{1,9}", re.compile(r"-?\d{1,9}\.\d+").search, times("1")),
    Expression(
        "report/page.py", "(.*?)([mp]", re.compile(r"(.*?)([mp][0-9a-f]{10}.*)").fullmatch, times("m012345678!"),
    ),
    Expression("report/page.py", " (?=[A-Za-z])", re.compile(r" (?=[A-Za-z])|(?<=[A-Za-z]) ").search, times(" ")),
    Expression(_READERS, r"(---\s", readers._YAML.match, times("a", after="!")),
    Expression(_READERS, r"^---\s*$", readers._DOCUMENT.search, times("\n", before="---", after="x")),
    Expression(_READERS, r"[\s,]*", readers._BETWEEN.match, times(" ,")),
    Expression(
        "workload/dataset/dataset.py", r"([\w.-]+/", dataset._NAME.fullmatch, times("a", before="a/b@", after="!"),
    ),
    Expression("workload/dataset/dataset.py", r"^license:", dataset._LICENCE.search, times("\n", before="license:")),
    Expression("dialects/unlisted.py", "(prompt|input)", unlisted._PROMPT.fullmatch, times("token", before="prompt_")),
    Expression("dialects/unlisted.py", "(completion|", unlisted._ANSWER.fullmatch, times("token", before="output_")),
    Expression("run/launch/first_requests.py", r"stream\w*", first_requests._NO_STREAM.search, times("stream ")),
    Expression(
        "workload/dataset/files.py", r'(?:[^"', files._NO_BRACKET.match, _bytes(times("\\n", before='"')),
    ),
    Expression(
        "workload/dataset/files.py", r" \(byte", files._OFFSET.search, times(" (byte 1"),
    ),
)  # fmt: skip


def missing() -> list[str]:
    """Expressions of the harness that the table does not list, and those of the table that are no more."""
    listed = {(each.file, each.source) for each in TABLE}
    wrong, seen = [], set()
    for path in sorted(HARNESS.rglob("*.py")):
        file = path.relative_to(HARNESS).as_posix()
        for source in _sources(path):
            found = [each for each in listed if each[0] == file and source.startswith(each[1])]
            seen.update(found)
            if not found:
                wrong.append(f"{file}: {source[:60]} is not in tests/trust/expressions.py")
    return wrong + [f"{file}: {source} is no more" for file, source in sorted(listed - seen)]


def _sources(path: Path) -> Iterator[str]:
    """The first argument of each call of `re` in a file: its text, or its code where it is made of several."""
    code = path.read_text()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "re", f"{path}: import re, so that its expressions are found"
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr not in ("escape", "error")
        ):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
            first = node.args[0]
            text = first.value if isinstance(first, ast.Constant) else ast.get_source_segment(code, first)
            yield text.decode() if isinstance(text, bytes) else str(text)


def growth(expression: Expression) -> float:
    """Return how many times longer a text takes than one of an eighth of its length; the larger of two steps."""
    found = 0.0
    for length in (expression.length // LONGER, expression.length):  # a square is seen before it takes an hour
        found = max(found, _seconds(expression, length) / _seconds(expression, length // LONGER))
        if found > WORST:
            break
    return found


def _seconds(expression: Expression, length: int) -> float:
    """Return the processor time that the worst text of a length takes, in seconds, the best of three."""
    best = float("inf")
    for _ in range(3):
        text = expression.worst(length)
        began = time.thread_time()
        expression.use(text)
        best = min(best, time.thread_time() - began)
        if best > 1.0:  # it will not be better
            break
    return max(best, _SHORTEST_S)
