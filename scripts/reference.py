"""docs/reference.md and docs/comparability.md: keys, options, verdicts, exit statuses; and those of other tools.

    python scripts/reference.py          # writes it; a test compares

A key's meaning is the help of its option, else the comment at its field. A verdict's cause is the description of its
rule, and what to do is the advice that the rule gives, with "…" for what differs from run to run.
"""

from __future__ import annotations

import ast
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from harness.analysis.rules import Rule, registered
from harness.cli import familiar
from harness.data.figures import declared
from harness.data.levels import ClassSummary, LevelSummary, ReplicaSummary
from harness.spec import classes, recipe, reuse, scenario
from harness.spec.options import OPTIONS, Option

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
COMPARABILITY = ROOT / "docs" / "comparability.md"
DEFINITIONS = ROOT / "docs" / "definitions.md"
RULES = ROOT / "harness" / "analysis" / "rules"

TABLES: list[tuple[str, type[msgspec.Struct], str]] = [
    ("target", scenario.Target, "The endpoint."),
    ("workload", scenario.WorkloadSpec, "What is asked. [workloads.md](workloads.md) shows each table in use."),
    ("workload.dataset", reuse.DatasetSpec, "Requests from a file."),
    ("workload.prefix", reuse.PrefixSpec, "What prompts begin with."),
    ("workload.session", reuse.SessionSpec, "Users who take turns."),
    ("[workload.node]", reuse.NodeSpec, "One request of an agent's task."),
    ("[class]", classes.ClassSpec, "One kind of request among others."),
    (
        "class.cancel",
        classes.Cancel,
        "Users of a class who give up. `after_tokens` counts chunks where tokens come several in one.",
    ),
    ("ramp", scenario.Ramp, "The load and its bounds."),
    (
        "quality",
        scenario.QualitySpec,
        "Canaries and questions (`--canaries`, `--questions`): [quality.md](quality.md).",
    ),
    ("hardware", scenario.Hardware, "What serves, for the prediction and the cost."),
    ("sweep", scenario.Sweep, "A knee for every combination: a level map."),
    ("sim", scenario.Sim, 'The simulated endpoint, `url = "sim:"`.'),
    ("[stack]", recipe.StackSpec, "One server of a campaign, `knee stacks run`: [stacks.md](stacks.md)."),
]
# Fields that a run writes for itself.
_WRITTEN = {("workload.dataset", name) for name in ("requests", "skipped", "input_tokens", "output_tokens")}


def page() -> str:
    """Return the whole page."""
    return "\n".join(
        [
            "# Reference",
            "",
            "Every key of a scenario file with its option, and every verdict with its remedy. [guide.md](guide.md) is",
            "where to begin, [definitions.md](definitions.md) says what every word, file and field means.",
            "",
            *_scenario(),
            *_verdicts(),
        ]
    )


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table, without columns that say nothing."""
    columns = [column for column in zip(heads, *rows, strict=True) if {*column[1:]} != {"–"}]
    heads, *rows = zip(*columns, strict=True)
    return [f"| {' | '.join(heads)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


# ---- scenario -----------------------------------------------------------------------------------------------


def _scenario() -> list[str]:
    lines = [
        "## Scenario",
        "",
        "`knee run FILE.toml` reads it, `--print-scenario` prints it. An option wins over its key.",
        'Times are seconds or texts like `"500ms"`. Counts may be `"1.5k"`.',
        "",
        '`name = "run"` names the result folder. `[slo]` holds limits by name, like `ttft_p99 = "2s"` (`--slo`).',
        "",
    ]
    for name, kind, what in TABLES:
        lines += [f"### `[{name}]`", "", what, "", *(f"- {key}: {meaning}" for key, meaning in _keys(name, kind)), ""]
    return lines


def _keys(table: str, kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """(key and its option, meaning with the default) of each field that a file may have."""
    comments = dict(_comments(kind))
    for field in msgspec.structs.fields(kind):
        if (table, field.encode_name) in _WRITTEN:
            continue
        option = _option(table, field.encode_name)
        meaning = (option.help if option else "") or comments.get(field.encode_name, "")
        if issubclass(_inner(field.type), msgspec.Struct):
            meaning = meaning or "a table, below"
        flag = f", `{option.names.partition('/')[0]}`" if option else ""
        if (value := _default(field)) != "–" and "default" not in meaning:
            meaning = f"{meaning.removesuffix('.')}; default {value}."
        yield f"`{field.encode_name}`{flag}", meaning or "–"


def _option(table: str, key: str) -> Option | None:
    """Return the option of `knee run` that sets the key; of several the one of its name."""
    path, own = f"{table}.{key}", f"--{key.replace('_', '-')}"
    known = {option.names.partition("/")[0]: option for some in OPTIONS.values() for option in some}
    found = {name: option for name, option in known.items() if {path, table} & {*option.sets}}
    first = next((option for option in found.values() if path in option.sets), None)
    return found.get(own, first)


def _inner(kind: typing.Any) -> type:
    """Return the struct that a field's type holds, else any type."""
    for each in (
        kind,
        *typing.get_args(kind),
        *(part for arg in typing.get_args(kind) for part in typing.get_args(arg)),
    ):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return object


def _default(field: typing.Any) -> str:
    unset = field.default is False or field.default in (msgspec.NODEFAULT, msgspec.UNSET, None, "")
    if field.default_factory is not msgspec.NODEFAULT or unset:
        return "–"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def _comments(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """(field, the comment at the end of its line), without what is said of Python's own values."""
    for each in (base for base in kind.__mro__ if base.__module__.startswith("harness.")):
        module = Path(str(sys.modules[each.__module__].__file__)).read_text()
        body = module.partition(f"class {each.__name__}(")[2].partition("\n\n\n")[0]
        for name, comment in re.findall(r"^    (\w+): .*?  # (.*)$", body, re.MULTILINE):
            yield name, re.sub(r"^(None|UNSET): |[;,] (None|UNSET|\"\"): .*$", "", comment)


# ---- other tools --------------------------------------------------------------------------------------------


_PARTS = {
    "host": "the address",
    "port": "the address",
    "path": "the path behind the address",
    "levels": "`--levels`",
    "cap": "`--levels`; with a rate `--max-concurrency`",
    "requests": "`--max-requests`, of all levels together",
    "seconds": "`--max-seconds`, of all levels together",
    "amount": "`--levels` or `--rate`, by the kind of load",
    "input sd": "the spread in `--input-tokens`",
    "output sd": "the spread in `--output-tokens`",
    "kind": "the kind of load",
    "input low": "the range in `--input-tokens`",
    "input high": "the range in `--input-tokens`",
    "output low": "the range in `--output-tokens`",
    "output high": "the range in `--output-tokens`",
    "around": "the range in `--input-tokens` and `--output-tokens`, around the length",
    "below": "the range in `--input-tokens` and `--output-tokens`, up to the length",
    "prefix": "`--prefix-tokens`",
    "prefixes": "the number of texts in `--prefix-tokens`",
    "served": "`--model`",
    "key": "`--api-key-env`",
}
_READ = {"fields": "`--extra-body`", "pairs": "its settings, each as below"}


def comparability() -> str:
    """Return the page about other tools: for each its window, its definitions, its options, and what differs."""
    lines = [
        "# Comparability",
        "",
        "`knee run` takes the command lines of eleven other load generators, without the tool's name:",
        "",
        "```sh",
        "vllm bench serve --backend vllm --port 8000 --dataset-name random --num-prompts 100 --max-concurrency 8",
        "knee run         --backend vllm --port 8000 --dataset-name random --num-prompts 100 --max-concurrency 8",
        "```",
        "",
        "Knee prints the line in its own words. It names what it leaves out, and what it cannot take.",
        "Results go from tool to tool, too: [compare.md](compare.md#other-tools-results), [exports.md](exports.md).",
        "",
        "Each tool is listed with what it counts. Knee's own definitions are in",
        "[definitions.md](definitions.md#times-of-a-request).",
        "",
    ]
    for tool in familiar.tools():
        lines += _tool(tool)
    return "\n".join(lines)


def _tool(tool: familiar.Tool) -> list[str]:
    rows: dict[str, list[str]] = {}
    for name, row in tool.options.items():
        if not row.left:
            rows.setdefault(_here(row), []).append(f"`{name}`")
    same = [here for here, names in rows.items() if names == [here]]
    renamed = [here for here in rows if here not in same and re.fullmatch("`--[a-z-]+`", here)]
    others = [(", ".join(names), here) for here, names in rows.items() if here not in (*same, *renamed)]
    pairs = "; ".join(f"{', '.join(rows[here])}: {here}" for here in renamed)
    return [
        f"## {tool.name}",
        "",
        f"Version [{tool.version}]({tool.docs}).",
        "",
        *(
            f"- **{name}**: {text}"
            for name, text in (
                ("window", tool.window),
                ("throughput", tool.throughput),
                ("TTFT", tool.ttft),
                ("gaps", tool.gaps),
                ("to expect", tool.expect),
            )
            if text != "–"
        ),
        "",
        *([f"Only the name differs: {pairs}.", ""] if renamed else []),
        *(f"- {names}: {here}" for names, here in others),
        *([""] if others else []),
        *([f"Taken under the same names: {', '.join(same)}.", ""] if same else []),
    ]


def _here(row: familiar.Row) -> str:
    """Return what an option of another tool is here."""
    if row.instead and not row.values:
        return f"refused: {row.instead}"
    if row.about:
        return f"`{row.is_}`: {row.about}"
    if row.values:
        given = {ours: [name for name, same in row.values.items() if same == ours] for ours in row.values.values()}
        if any("(" in pattern for pattern in row.values):
            words = dict.fromkeys(" ".join(given).split())
            return ", ".join(f"`{each}`" for each in words if each.startswith("--"))
        return "; ".join(", ".join(names) + (f": `{ours}`" if ours else "") for ours, names in given.items())
    if row.body:
        return "`--extra-body`"
    return f"`{row.is_}`" if row.is_ else _PARTS[row.part] if row.part else _READ[row.read.split()[0]]


# ---- verdicts -----------------------------------------------------------------------------------------------


def _verdicts() -> list[str]:
    advice = _advice()
    rows = []
    first: dict[str, str] = {}  # advice → the code that gives it first
    for code, severity, says in _causes():
        remedy = _cell("; or ".join(advice[code.removesuffix("_…")][:2])) or "–"
        same = first.setdefault(remedy, code)
        rows.append(
            (f"`{code}`", severity, _cell(says), remedy if same == code or len(remedy) < 80 else f"as `{same}`")
        )
    return [
        "## Verdicts",
        "",
        "A note says something about the figures. A doubt: read them with care. An invalid voids its level or run.",
        "A run prints what to do in its case; the table has two ways out at most.",
        "",
        *_table(("verdict", "level", "cause", "what to do"), rows),
    ]


def _causes() -> Iterator[tuple[str, str, str]]:
    """Yield each code with the severities that it may have, and what it says."""
    for code, same in _by_code().items():
        severities = dict.fromkeys(severity for rule in same for severity in rule.severities)
        says = " ".join(rule.description for rule in same)
        yield code + "_…" * same[0].kinds, " or ".join(severities), says


def _by_code() -> dict[str, list[Rule[typing.Any]]]:
    found: dict[str, list[Rule[typing.Any]]] = {}
    for rule in registered():
        found.setdefault(rule.code, []).append(rule)
    return found


def _advice() -> dict[str, list[str]]:
    """Return what the rules of each code advise, each text once."""
    sources = [ast.parse(file.read_text()) for file in sorted(RULES.glob("*.py"))]
    functions = {node.name: node for tree in sources for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {
        code: list(dict.fromkeys(text for rule in same for text in _advised(rule.judge.__name__, functions)))
        for code, same in _by_code().items()
    }


def _advised(name: str, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """Yield what the advice of a rule's findings may be: of those that it makes itself, or has made by a helper."""
    for call in ast.walk(functions[name]):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or len(call.args) < 2:
            continue
        helper = functions.get(call.func.id)
        if call.func.id == "Finding":
            advice = call.args[1]
        elif helper is not None and "Finding" in ast.unparse(helper.returns or ast.Constant(None)):
            advice = call.args[-1]
        else:
            continue
        if isinstance(advice, ast.Name):
            advice = _latest(functions[name], advice) or advice
        yield from _texts(advice, functions[name], functions)


def _texts(node: ast.AST, function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """Return the texts that an expression of a function may be."""

    def of(part: ast.AST) -> list[str]:
        return _texts(part, function, functions)

    match node:
        case ast.Constant(value=str(text)):
            return [text] if text else []
        case ast.JoinedStr():
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            text = "".join(map(str, parts))
            return [] if text.startswith("…") else [text]
        case ast.IfExp():
            return of(node.body) + of(node.orelse)
        case ast.Subscript(value=ast.Call(func=ast.Name(id=name)), slice=ast.Constant(value=int(i))):
            return _returned(functions[name], i, functions) if name in functions else []
        case ast.Name():
            return [
                text for value, i in _assigned(function, node.id) for text in _of_value(value, i, function, functions)
            ]
    return []


def _latest(function: ast.FunctionDef, name: ast.Name) -> ast.expr | None:
    """Return what was assigned to the name last among the statements around its use; None: in a branch of them."""
    found = None
    for node in ast.walk(function):
        for body in (getattr(node, part, []) for part in ("body", "orelse")):
            if isinstance(body, list) and any(each.lineno <= name.lineno <= (each.end_lineno or 0) for each in body):
                before = [each for each in body if isinstance(each, ast.Assign) and each.lineno < name.lineno]
                own = [each.value for each in before if ast.unparse(each.targets[0]) == name.id]
                found = own[-1] if own else None  # `walk` comes from outside to inside
    return found


def _assigned(function: ast.FunctionDef, name: str) -> Iterator[tuple[ast.expr, int | None]]:
    """Yield what a name of a function is assigned: the value, and which element of it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value, None
                elif isinstance(target, ast.Tuple):
                    for i, each in enumerate(target.elts):
                        if isinstance(each, ast.Name) and each.id == name:
                            yield node.value, i


def _of_value(
    value: ast.expr, i: int | None, function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]
) -> list[str]:
    if i is None:
        return _texts(value, function, functions)
    if isinstance(value, ast.Tuple):
        return _texts(value.elts[i], function, functions)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in functions:
        return _returned(functions[value.func.id], i, functions)
    return []


def _returned(function: ast.FunctionDef, i: int, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """Return the texts of one element of what a function returns."""
    found = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    tuples = sorted((value for value in found if isinstance(value, ast.Tuple)), key=lambda value: value.lineno)
    return [text for value in tuples for text in _texts(value.elts[i], function, functions)]


# ---- the rest -----------------------------------------------------------------------------------------------


def definitions() -> str:
    """Return docs/definitions.md with the lists of figures made anew."""
    before, begin, rest = DEFINITIONS.read_text().partition("<!-- made by scripts/reference -->\n")
    _, end, after = rest.partition("<!-- until here -->\n")
    kinds: dict[str, type[msgspec.Struct]] = {"level": LevelSummary, "class": ClassSummary, "replica": ReplicaSummary}
    figures = {name: each.about for kind in kinds.values() for name, each in declared(kind).items()}
    of: dict[str, list[tuple[str, str]]] = {}
    for name, each in sorted(figures.items(), key=lambda row: row[1].group):
        of.setdefault(_of(name, kinds), []).append((f"`{name}`", each.what))
    lists = "\n".join(
        f"Of {words}:\n\n" + "".join(f"- {name}: {what}\n" for name, what in rows) for words, rows in of.items()
    )
    return f"{before}{begin}\n{lists}\n{end}{after}"


def _of(figure: str, kinds: Mapping[str, type[msgspec.Struct]]) -> str:
    return ", ".join(word for word, kind in kinds.items() if figure in declared(kind))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    DEFINITIONS.write_text(definitions())
    PAGE.write_text(page())
    COMPARABILITY.write_text(comparability())
