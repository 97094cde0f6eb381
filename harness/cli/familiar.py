"""Command lines of other load generators, put into Knee's own words.

`tools.toml` has each tool's options and what each is in Knee. A line is the tool's that knows most of it. What is left
out is said with its reason, and everything that cannot be taken is named at once.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.cli import theirs
from harness.cli.theirs import Parts

VERBS = {"bench": "run", "benchmark": "run", "profile": "run", "sweep": "run", "test": "run", "serve": "sim"}


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
    error: str = ""


@cache
def tools() -> tuple[Tool, ...]:
    """Return every tool of tools.toml, in its order."""
    found = tomllib.loads(Path(__file__).with_name("tools.toml").read_text())["tool"]
    return tuple(_tool(each) for each in found)


def _tool(table: dict[str, Any]) -> Tool:
    options = {
        name: Row(row) if isinstance(row, str) else Row(**{_FIELDS.get(key, key): value for key, value in row.items()})
        for name, row in table.pop("options").items()
    }
    lists = {name: tuple(value) for name, value in table.items() if isinstance(value, list)}
    return Tool(options=options, **{**table, **lists})


_FIELDS = {"is": "is_"}


def take(arguments: Sequence[str], ours: Ours) -> Taken:
    """Return a command line in Knee's words; one without another tool's words is as it was.

    >>> take(["--isl=512", "chat"], Ours(["--input-tokens"])).arguments
    ['chat', '--input-tokens', '512']
    """
    rest, speakers = _without_words(arguments) if ours.measures else (list(arguments), ())
    tool = _speaker(rest, ours, speakers)
    if tool is None:
        return Taken(rest, wrong=_misspelt(rest, ours))
    words = list(_words(rest, tool, ours))
    parts = Parts(tool=tool.name, url=tool.url, load=tool.load)
    wrong = [error for word in words if (error := word.error or _put(word, parts, tool, ours))]
    if wrong:
        return Taken(rest, wrong=wrong)
    foreign = [word for word in words if word.row is not None]
    certain = bool(speakers) or len(foreign) > 1
    if ours.measures:
        theirs.complete(parts, certain=certain)
    taken = parts.arguments()
    said = certain and any(not word.row.is_ or word.row.takes == "many" for word in foreign if word.row)
    notes = [f"read as {tool.name}'s: knee run {theirs.shown(taken)}"] if said and ours.measures else []
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
    """Return the tool that knows most of the line; None where all of it is Knee's, or nobody's."""

    def known(tool: Tool) -> int:
        named = [word for word in _words(arguments, tool, ours, alone=True) if word.name]
        own = sum(1 + _says(word) for word in named if _is_foreign(word, ours))
        shared = sum(1 for word in named if word.row is not None and word.name in ours.options)
        return (own and own + shared) + 100 * (tool.name in speakers)

    best = max(tools(), key=known)  # the first of those that know as much
    return best if known(best) else None


def _says(word: _Word) -> bool:
    """Return whether a value is one of those that the tool's option has, where they are few."""
    return not word.error and not (word.row and word.row.values and word.values[0] not in word.row.values)


def _is_foreign(word: _Word, ours: Ours) -> bool:
    """Return whether an option says that the line is a tool's: Knee has no such name, or not with such a value."""
    return word.row is not None and (word.name not in ours.options or bool(word.row.when))


def _words(arguments: Sequence[str], tool: Tool, ours: Ours, *, alone: bool = False) -> Iterable[_Word]:
    """Yield the options of a line with what each is for a tool; not `alone`: else for another one that has it."""
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
        row = _row(name, tool, ours, alone=alone)
        if row is None and name not in ours.options and not name.startswith("--"):
            row, name, value, equals = _short(argument, tool, ours, alone=alone)
        given = [value] if equals else []
        following = given or [each for each in waiting[:1] if not _is_option(each)]
        if row is not None and name in ours.options and not row.fits(following[0] if following else ""):
            row = None
        takes = row.takes if row is not None else 0 if name in ours.flags else 1
        if row is None and name not in ours.options:
            if not equals and waiting and not _is_option(waiting[0]) and not _ends_many(waiting[0]):
                waiting.pop(0)
            yield _Word(name, given, None, "" if alone else _unknown(name, ours))
        elif takes == 0:
            yield _Word(name, given, row)
        elif takes == "many":
            while waiting and not _is_option(waiting[0]) and not (given and _ends_many(waiting[0])):
                given.append(waiting.pop(0))
            yield _Word(name, given, row, "" if given else _needs_value(name))
        elif given or waiting:
            yield _Word(name, given or [waiting.pop(0)], row)
        else:
            yield _Word(name, [], row, _needs_value(name))


def _row(name: str, tool: Tool, ours: Ours, *, alone: bool) -> Row | None:
    """Return what an option is: for the tool, else for another that has it, where Knee has no such name."""
    if name in tool.options or name in ours.options or alone:
        return tool.options.get(name)
    return next((other.options[name] for other in tools() if name in other.options), None)


def _short(argument: str, tool: Tool, ours: Ours, *, alone: bool) -> tuple[Row | None, str, str, str]:
    """Return (row, name, value, "=") of an option with its value behind it, like -c8."""
    row = _row(argument[:2], tool, ours, alone=alone)
    return (row, argument[:2], argument[2:], "=") if row and len(argument) > 2 else (None, argument, "", "")


def _is_option(text: str) -> bool:
    return text.startswith("-") and re.fullmatch(r"-[0-9.]+|-", text) is None


def _ends_many(text: str) -> bool:
    """Return whether an argument behind several values is none of them: an address or a scenario."""
    return "://" in text or text.startswith(("sim:", "unix:")) or text.endswith(".toml")


def _put(word: _Word, parts: Parts, tool: Tool, ours: Ours) -> str:
    """Add what an option says to the line; the error where that cannot be."""
    row = word.row
    if row is None:
        text = word.values[0] if word.values else ""
        if not word.name and text.endswith(tool.scripts or (" ",)):
            parts.left[text] = "Knee makes the requests: see --input-tokens and --dataset"
        elif word.name:
            parts.own.append((word.name, word.values))
        else:
            parts.alone += word.values
        return ""
    if row.instead:
        return f"{word.name}: no such option; {row.instead}"
    if not ours.measures and row.is_.partition(" ")[0] not in ours.options:
        return _unknown(word.name, ours)
    if row.left:
        parts.left[word.name] = row.left
        return ""
    if row.values:
        return _put_value(word, row.values, parts)
    texts = [f"{value}{row.unit}" for value in word.values]
    if row.about:
        parts.about.append(f"{word.name} {' '.join(texts)} {row.about}")
    if row.is_:
        name, *fixed = row.is_.split()
        parts.say(name, fixed or texts)
    elif row.body:
        parts.body[row.body] = theirs.value(texts[0])
    elif row.part:
        parts.of.setdefault(row.part, []).extend(texts)
    else:
        function, *more = row.read.split()
        return theirs.READ[function](parts, word.name, texts, *more)
    return ""


def _put_value(word: _Word, values: Mapping[str, str], parts: Parts) -> str:
    said = values.get(word.values[0])
    if said is None:
        return f"{word.name}: {word.values[0]!r} has no equal here; known: {', '.join(values)}"
    words = said.split()
    for name, text in zip(words[::2], words[1::2], strict=True):
        parts.usual.setdefault(name, [text])
    return ""


def _needs_value(name: str) -> str:
    return f"{name}: it needs a value; write {name} VALUE"


def _misspelt(arguments: Sequence[str], ours: Ours) -> list[str]:
    """Return a line for each option that nobody has; [] where click says more: of one with a value too many or few."""
    nobody = tools()[0]._replace(options={})
    found = [word.error for word in _words(arguments, nobody, ours) if ": no such option" in word.error]
    return list(dict.fromkeys(found))


def _unknown(name: str, ours: Ours) -> str:
    """Return the line for an option that neither the command nor a tool has, with the nearest that it takes."""
    way_out = next((row.instead for tool in tools() if (row := tool.options.get(name)) and row.instead), "")
    if not way_out:
        others = [option for tool in tools() for option in tool.options] if ours.measures else []
        near = difflib.get_close_matches(name, dict.fromkeys([*ours.options, *others]), n=3)
        near.sort(key=lambda each: (-difflib.SequenceMatcher(None, each, name).ratio(), each not in ours.options))
        way_out = f"did you mean {near[0]}?" if near else ""
    return f"{name}: no such option" + (f"; {way_out}" if way_out else "")
