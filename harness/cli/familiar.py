"""Command lines of other load generators, put into Knee's own words.

`tools.toml` has each tool's options and what each is in Knee. A line is the tool's that knows most of it. What is left
out is said with its reason, and everything that cannot be taken is named at once.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.cli import theirs
from harness.cli.theirs import Parts

VERBS = {"bench": "run", "benchmark": "run", "profile": "run", "sweep": "run", "test": "run", "serve": "sim"}
_SCRIPT = "Knee makes the requests: see --input-tokens and --dataset"


class Row(NamedTuple):
    """What one option of a tool is in Knee; the fields are those of tools.toml."""

    is_: str = ""
    unit: str = ""
    body: str = ""
    values: Mapping[str, str] = {}
    part: str = ""
    read: str = ""
    left: str = ""
    about: str = ""
    instead: str = ""
    takes: int | str = 1
    when: str | None = None

    def fits(self, text: str) -> bool:
        """Return whether a value is this tool's, where the option is Knee's too."""
        return not self.when or re.fullmatch(self.when, text) is not None

    def words(self, text: str) -> list[str] | None:
        """Return what a value is in Knee's words, by the first pattern of `values` that it is; None: no equal here."""
        matches = ((re.fullmatch(pattern, text), ours) for pattern, ours in self.values.items())
        found = next(((match, ours) for match, ours in matches if match), None)
        return [found[0].expand(word) for word in shlex.split(found[1])] if found else None


class Tool(NamedTuple):
    """Another load generator, as tools.toml describes it."""

    name: str
    version: str
    docs: str
    words: tuple[str, ...]
    url: str
    load: str
    options: Mapping[str, Row]
    window: str
    throughput: str
    ttft: str
    gaps: str
    expect: str
    scripts: tuple[str, ...] = ()


class Ours(NamedTuple):
    """What a command of Knee knows."""

    options: Collection[str]
    flags: Collection[str] = ()  # those of the options that take no value
    alone: Collection[str] = ()  # names of what is written without an option
    measures: bool = False  # whether it is a command that loads a server, as other tools do


class Taken(NamedTuple):
    """A line in Knee's words, and what there is to say about it."""

    arguments: list[str]
    notes: Sequence[str] = ()
    wrong: Sequence[str] = ()  # what cannot be taken, each with what to type


class _Word(NamedTuple):
    """One option of a line with its values, or one argument without an option."""

    name: str
    values: list[str]
    row: Row | None = None  # None: Knee's own, or nobody's


@cache
def tools() -> tuple[Tool, ...]:
    """Return every tool of tools.toml, in its order."""
    found = tomllib.loads(Path(__file__).with_name("tools.toml").read_text())["tool"]
    return tuple(_tool(each) for each in found)


def _tool(table: dict[str, Any]) -> Tool:
    """Return another load generator's options and words, from its table in tools.toml."""
    options = {
        name: Row(row) if isinstance(row, str) else Row(**{"is_" if key == "is" else key: row[key] for key in row})
        for name, row in table.pop("options").items()
    }
    lists = {name: tuple(value) for name, value in table.items() if isinstance(value, list)}
    return Tool(options=options, **{**table, **lists})


def read(arguments: Sequence[str], ours: Ours) -> Taken:
    """Translate a command line in another tool's options into Knee's; one that has none of these is left as it is.

    >>> read(["--isl=512", "chat"], Ours(["--input-tokens"])).arguments
    ['chat', '--input-tokens', '512']
    """
    rest, speakers = _without_words(arguments) if ours.measures else (list(arguments), ())
    tool = _speaker(rest, ours, speakers)
    if tool is None:  # Knee's, or nobody's: of a value too many or few click says more
        wrong = [_unknown(word.name, ours) for word in _words(rest, {}, ours) if _is_nobodys(word, ours)]
        return Taken(rest, wrong=list(dict.fromkeys(wrong)))
    others = {name: row for each in tools() for name, row in each.options.items() if name not in ours.options}
    rows = {**others, **tool.options}
    words, parts = list(_words(rest, rows, ours)), Parts(tool=tool.name, url=tool.url, load=tool.load)
    wrong = [error for word in words if (error := _put(word, parts, tool, ours, rows))]
    if wrong:
        return Taken(rest, wrong=wrong)
    foreign = [word.row for word in words if word.row is not None]
    certain = bool(speakers) or len(foreign) > 1
    if ours.measures:
        theirs.complete(parts, certain=certain)
    taken = parts.arguments()
    recognised = ours.measures and certain and any(not row.is_ or row.takes == "many" for row in foreign)
    notes = [f"read as {tool.name}'s: knee run {theirs.shown(taken)}"] if recognised else []
    return Taken(taken, notes + parts.notes())


def _without_words(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments without a tool's own words in front, and the names of the tools that have them."""
    every = {tuple(words.split()) for tool in tools() for words in tool.words}
    for words in sorted(every, key=len, reverse=True):
        if tuple(arguments[: len(words)]) == words and len(arguments) > len(words):
            names = tuple(tool.name for tool in tools() if " ".join(words) in tool.words)
            return list(arguments[len(words) :]), names
    return list(arguments), ()


def _speaker(arguments: Sequence[str], ours: Ours, speakers: Sequence[str]) -> Tool | None:
    """Return the other tool to which most of the line's options belong; None if none belongs to another tool."""

    def known(tool: Tool) -> int:
        own = shared = 0
        for name, values, row in _words(arguments, tool.options, ours):
            if row is not None:
                shared += name in ours.options
                if name not in ours.options or row.when:  # a value of the few that it has says more
                    own += 2 if values and (not row.values or row.words(values[0]) is not None) else 1
        return (own and own + shared) + 100 * (tool.name in speakers)

    best = max(tools(), key=known)  # the first of those that know as much
    return best if known(best) else None


def _words(arguments: Sequence[str], rows: Mapping[str, Row], ours: Ours) -> Iterator[_Word]:
    """Yield each option of a line with its values and its row, None for one that `rows` does not have."""
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            yield _Word("", waiting)
            return
        if not argument.startswith("-") or argument == "-":
            yield _Word("", [argument])
            continue
        name, equals, value = argument.partition("=") if argument.startswith("--") else (argument, "", "")
        if name not in rows and name not in ours.options and argument[:2] in rows:  # like -c8
            name, equals, value = argument[:2], "=", argument[2:]
        values = [value] if equals else []
        row = rows.get(name)
        following = values or [each for each in waiting[:1] if not _is_option(each)]
        if row is not None and name in ours.options and not row.fits(following[0] if following else ""):
            row = None
        takes = row.takes if row is not None else 0 if name in ours.flags else 1
        most = takes if isinstance(takes, int) else len(waiting) + 1
        while len(values) < most and waiting and not _is_option(waiting[0]):
            if _ends_values(waiting[0]) and (values or (row is None and name not in ours.options)):
                break
            values.append(waiting.pop(0))
        yield _Word(name, values, row)


def _is_option(text: str) -> bool:
    return text.startswith("-") and re.fullmatch(r"-[0-9.]+|-", text) is None


def _ends_values(text: str) -> bool:
    """Return whether an argument behind several values is none of them: an address or a scenario."""
    return theirs.is_address(text) or text.endswith(".toml")


def _is_nobodys(word: _Word, ours: Ours) -> bool:
    return bool(word.name) and word.row is None and word.name not in ours.options


def _put(word: _Word, parts: Parts, tool: Tool, ours: Ours, rows: Mapping[str, Row]) -> str:
    """Add one option of the line to the translated parts; return the error, "" if there is none."""
    name, values, row = word
    if not name:
        if values and values[0].endswith(tool.scripts or (" ",)):
            parts.left[values[0]] = _SCRIPT
        else:
            parts.alone += values
        return ""
    if _is_nobodys(word, ours) or (row and not ours.measures and row.is_.partition(" ")[0] not in ours.options):
        return _unknown(name, ours)
    if not values and (row.takes if row else name not in ours.flags):
        return f"{name}: it needs a value; write {name} VALUE"
    if row is None:
        parts.own.append((name, values))
        return ""
    return _put_row(name, values, row, parts, rows)


def _put_row(name: str, values: Sequence[str], row: Row, parts: Parts, rows: Mapping[str, Row]) -> str:
    """Add another tool's option, as its row translates it, to the parts; return the error if it has no equal here."""
    if row.instead and not row.values:
        return f"{name}: no such option; {row.instead}"
    if row.left:
        parts.left[name] = row.left
        return ""
    texts = [f"{value}{row.unit}" for value in values]
    if row.about:
        parts.about.append(f"{name} {' '.join(texts)} {row.about}")
    if row.part:
        parts.of.setdefault(row.part, []).extend(texts)
    if row.values:
        return _put_values(name, values, row, parts)
    if row.is_:
        option, *fixed = row.is_.split()
        parts.say(option, fixed or texts)
    elif row.body:
        parts.body[row.body] = theirs.value(texts[0])
    elif row.read == "fields":
        return _put_fields(name, texts, parts)
    elif row.read:
        return _put_pairs(row.read.partition(" ")[2] or name, texts[0], parts, rows)
    return ""


def _put_values(name: str, values: Sequence[str], row: Row, parts: Parts) -> str:
    """Add the options that the values are in Knee's words to the parts; return the error, "" if there is none."""
    for value in values:
        words = row.words(value)
        if words is None:
            return f"{name}: {value!r} has no equal here; {row.instead or 'known: ' + ', '.join(row.values)}"
        for option, text in zip(words[::2], words[1::2], strict=True):
            if option in theirs.SEVERAL:
                parts.say(option, [text])
            elif parts.usual.setdefault(option, [text]) != [text]:
                return f"{name}: a run has one; run Knee once for each"
    return ""


def _put_fields(name: str, texts: Sequence[str], parts: Parts) -> str:
    """Add fields of the request body, given as JSON, name:value or name=value, to the parts; return the error or ""."""
    for text in texts:
        parsed = theirs.value(text)
        match = re.fullmatch(r"([^:=]+)[:=](.*)", text)
        if not isinstance(parsed, dict) and match is None:
            return f"{name}: {text!r} has no name and value; write it like temperature:0.7"
        parts.body |= parsed if match is None or isinstance(parsed, dict) else {match[1]: theirs.value(match[2])}
    return ""


def _put_pairs(name: str, text: str, parts: Parts, rows: Mapping[str, Row]) -> str:
    """Add the settings in an option of GuideLLM, JSON or kind=…,name=value, each as an option; return the error or "".

    Each is an option of its own in tools.toml, like --data.prompt_tokens.
    """
    parsed = theirs.value(text)
    if not isinstance(parsed, dict):
        pairs = [part.strip().partition("=") for part in text.split(",")]
        parsed = {key: setting for key, equals, setting in pairs if equals} or {"kind": text}
    if f"{name}.path" in rows and os.path.exists(text):
        parsed = {"path": text}
    for key, setting in parsed.items():
        row = rows.get(f"{name}.{key}", Row(left="Knee decides it from what it measures"))
        plain = ",".join(map(str, setting)) if isinstance(setting, list) else str(setting)
        if error := _put_row(f"{name} {key}", [plain], row, parts, rows):
            return error
    return ""


def _unknown(name: str, ours: Ours) -> str:
    """Return the error line for an unknown option, with what to use instead or the nearest option that exists."""
    way_out = next((row.instead for tool in tools() if (row := tool.options.get(name)) and row.instead), "")
    if not way_out:
        others = [option for tool in tools() for option in tool.options] if ours.measures else []
        bare = {each.lstrip("-"): each for each in [*others, *ours.options, *ours.alone]}
        near = [bare[match] for match in difflib.get_close_matches(name.lstrip("-"), bare, n=3)]
        near.sort(key=lambda each: (-difflib.SequenceMatcher(None, each, name).ratio(), each not in ours.options))
        near = [option for option in ours.options if option.startswith(name)] or near  # it was cut short
        if near:
            way_out = f"did you mean {near[0]}?" if near[0].startswith("-") else f"write the {near[0]} without it"
    return f"{name}: no such option" + (f"; {way_out}" if way_out else "")
