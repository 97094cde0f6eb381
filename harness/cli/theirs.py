"""What several options of another tool say together, in Knee's words.

A length has its spread in an option of its own there, an address its host and its port, a load its kind and its
amount. `complete` puts them together once the whole line is read.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.base import units

API_KEY = "KNEE_API_KEY"  # environment variable of a key that was typed
SEVERAL = ("--url", "--header", "--server-meta")  # options of Knee that may be repeated
_NO_RATE = ("inf", "-1")  # rates that mean: as fast as they can be sent
_NO_KEY = ("", "EMPTY", "none", "None", "dummy")
_MEAN = {"input": "512", "output": "128"}  # Knee's own


@dataclass
class Parts:
    """A line while it is read: what it says in options of Knee, and parts of options."""

    tool: str
    url: str
    load: str
    alone: list[str] = field(default_factory=list)  # arguments without an option
    own: list[tuple[str, list[str]]] = field(default_factory=list)  # options that are Knee's
    taken: dict[str, list[str]] = field(default_factory=dict)  # options that became Knee's
    usual: dict[str, list[str]] = field(default_factory=dict)  # values by option, unless the line says others
    of: dict[str, list[str]] = field(default_factory=dict)  # parts by their names in tools.toml
    body: dict[str, Any] = field(default_factory=dict)  # fields of every request
    left: dict[str, str] = field(default_factory=dict)  # what is left out, and why
    about: list[str] = field(default_factory=list)  # what is taken in another sense

    def say(self, name: str, values: Sequence[str]) -> None:
        """Take an option of Knee; what may be repeated there is joined here."""
        self.taken[name] = [*self.taken.get(name, ()), *values] if name in SEVERAL else list(values)

    def has(self, *names: str) -> bool:
        """Return whether the line says one of these options of Knee."""
        return any(name in self.taken or any(own == name for own, _ in self.own) for name in names)

    def one(self, part: str) -> str:
        """Return the last value of a part; "" if the line has none."""
        return (self.of.get(part) or [""])[-1]

    def taken_out(self, name: str) -> list[str]:
        """Return the values of one of Knee's own options, which is no longer on the line."""
        found = [value for own, values in self.own if own == name for value in values]
        self.own = [each for each in self.own if each[0] != name]
        return found

    def arguments(self) -> list[str]:
        """Return the line in Knee's words."""
        arguments = list(self.alone)
        for name, values in [*self.own, *{**self.usual, **self.taken}.items()]:
            for value in values if name in SEVERAL else [" ".join(values)] if values else []:
                arguments += [name, value]
            arguments += [] if values else [name]
        return arguments

    def notes(self) -> list[str]:
        """Return what to print of the line: what is taken in another sense, and what is left out."""
        out = "; ".join(f"{name} ({why})" for name, why in self.left.items())
        return [*self.about, *([f"left out: {out}"] if out else [])]


def shown(arguments: Sequence[str]) -> str:
    """Return a line for people, without values of headers."""
    hidden = [
        re.sub(r":.*", ": …", text) if before == "--header" else text
        for before, text in zip(["", *arguments], arguments, strict=False)
    ]
    return shlex.join(hidden)


def is_address(text: str) -> bool:
    """Return whether an argument is an address by its scheme."""
    return "://" in text or text.startswith(("sim:", "unix:", "http:", "https:"))


def value(text: str) -> Any:
    """Return what a text is in JSON; else the text.

    >>> value("0.3"), value("true"), value("low")
    (0.3, True, 'low')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def complete(parts: Parts, *, certain: bool) -> None:
    """Add to a translated line what its parts say together: address, lengths, load, model, prefix, key, body fields.

    `certain`: it surely is the tool's, so the tool's own defaults apply.
    """
    _address(parts, certain=certain)
    _lengths(parts)
    _load(parts, certain=certain)
    if served := parts.one("served"):
        parts.taken_out("--model")
        parts.say("--model", [served])
    if prefix := parts.one("prefix").removeprefix("0"):
        parts.say("--prefix-tokens", [f"{prefix}x{parts.one('prefixes') or 1}"])
    if parts.one("key") not in _NO_KEY:
        os.environ[API_KEY] = parts.one("key")
        parts.say("--api-key-env", [API_KEY])
        parts.about.append(
            "a key on the command line is seen by every user of this machine; --api-key-env VAR hides it"
        )
    if parts.body.get("ignore_eos") is True:
        del parts.body["ignore_eos"]  # Knee sets it by default
    if parts.body:
        for typed in parts.taken_out("--extra-body"):
            parts.body |= json.loads(typed)
        parts.say("--extra-body", [json.dumps(parts.body)])


def _address(parts: Parts, *, certain: bool) -> None:
    """Make the address of host, port and path, and write http:// before one that has none."""
    host, port, path = (parts.one(name) for name in ("host", "port", "path"))
    urls = parts.taken_out("--url") + parts.taken.pop("--url", [])
    if host or port:
        start = host if "://" in host else f"http://{host or '127.0.0.1'}"
        urls.append(start.replace("://0.0.0.0", "://127.0.0.1") + (f":{port}" if port else ""))
    if not urls and not parts.alone and not parts.has("--resume", "--list") and certain and parts.url:
        parts.about.append(f"no address: {parts.url}, as {parts.tool} has it")
        urls = [parts.url]
    urls = [url if is_address(url) else f"http://{url}" for url in urls]
    if path:
        urls = [each for each in parts.alone if is_address(each)] + urls
        parts.alone = [each for each in parts.alone if not is_address(each)]
        urls = [url if _path(url) else f"{url.rstrip('/')}/{path.lstrip('/')}" for url in urls]
    if urls:
        parts.say("--url", urls)


def _path(url: str) -> str:
    return url.partition("://")[2].rstrip("/").partition("/")[2]


def _lengths(parts: Parts) -> None:
    """Write the spread of a length with the length."""
    for name in ("input", "output"):
        option = f"--{name}-tokens"
        if parts.has("--dataset"):
            parts.usual.pop(option, None)
        mean = (parts.taken.get(option) or parts.usual.get(option) or [""])[-1]
        sd, low, high = (parts.one(f"{name} {part}") for part in ("sd", "low", "high"))
        around, below = parts.one("around"), parts.one("below")
        length = f"{mean or _MEAN[name]}±{sd}" if sd and float(sd) else ""
        if low or high:
            low, high = low or high, high or low
            bounds = low if low == high else f"{low}..{high}"
            length = f"{length} in {bounds}" if length else bounds
        elif mean and not length and around and float(around):
            share = float(around)
            length = f"{math.floor(int(mean) * (1 - share)) or 1}..{math.ceil(int(mean) * (1 + share))}"
        elif mean and not length and below and float(below) < 1:
            length = f"{int(int(mean) * float(below)) or 1}..{mean}"
        if length:
            parts.say(option, [length])


def _load(parts: Parts, *, certain: bool) -> None:
    """Add to a translated line the load (concurrency or rate) and the bounds that end the run."""
    levels, cap, requests = list(parts.of.get("levels", ())), parts.one("cap"), parts.of.get("requests", [])
    if amounts := parts.of.get("amount"):
        if parts.one("kind") in ("concurrent", "throughput"):
            levels += amounts
        else:
            parts.say("--rate", [",".join(amounts)])
            parts.usual.setdefault("--arrivals", ["constant"])
    if "".join(parts.taken.get("--rate", ())) in _NO_RATE:
        parts.taken.pop("--rate")
        if not (parts.has("--max-requests") or cap or levels or requests):
            parts.about.append("no rate: all requests at once there; here the load rises until the knee is found")
    levels = [level for text in levels for level in text.split(",")]
    if parts.has("--rate"):
        if bound := cap or (levels or [""])[-1]:
            parts.say("--max-concurrency", [bound])
            parts.about.append(f"with a rate, {bound} is the most in flight")
        levels = []
    elif cap and not levels:
        levels = [cap]
        parts.about.append(f"--max-concurrency {cap} holds {cap} in flight, as {parts.tool} does: --levels {cap}")
    if requests:
        counts = [units.count(request, "--max-requests") for request in requests]
        parts.say("--max-requests", [str(sum(counts) if len(counts) > 1 else counts[0] * (len(levels) or 1))])
    if texts := parts.taken.get("--max-requests"):
        count = 0 if texts[-1].startswith("-") else units.count(texts[-1], "--max-requests")
        if count < 1:
            del parts.taken["--max-requests"]
        elif not levels and not parts.has("--rate", "--levels", "--max-concurrency", "--arrivals") and certain:
            levels = _usual_load(parts, count)
    if levels and not parts.has("--levels"):
        parts.say("--levels", [",".join(levels)])
    if seconds := parts.one("seconds"):
        number, unit = re.fullmatch(r"([0-9.]*)(.*)", seconds).groups()  # type: ignore[union-attr]
        amount = units.number(number or "1", "--max-seconds")
        parts.say("--max-seconds", [f"{amount * (len(levels) or 1):g}{unit}"])


def _usual_load(parts: Parts, requests: int) -> list[str]:
    """Return what the tool itself keeps in flight where its line says only how many requests."""
    if not parts.load or "--levels" in parts.usual:
        return []
    together = str(requests) if parts.load == "all" else parts.load
    if parts.load == "all":
        parts.say("--start", ["burst"])
    parts.about.append(
        f"no load is given: {together} in flight, as {parts.tool} has it; without it Knee finds the knee"
    )
    return [together]
