"""What several options of another tool say together, and the small languages of their values, in Knee's words.

A length has its spread in an option of its own there, an address its host and its port, a load its kind and its
amount. `complete` puts them together once the whole line is read.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

API_KEY = "KNEE_API_KEY"  # of a key that was typed
_NO_RATE = ("inf", "-1")  # as fast as they can be sent
_NO_KEY = ("", "EMPTY", "none", "None", "dummy")


@dataclass
class Parts:
    """A line while it is read: what it says in options of Knee, and parts of options."""

    tool: str
    url: str
    load: str
    alone: list[str] = field(default_factory=list)  # arguments without an option
    own: list[tuple[str, list[str]]] = field(default_factory=list)  # options that are Knee's
    taken: dict[str, list[str]] = field(default_factory=dict)  # options that became Knee's
    usual: dict[str, list[str]] = field(default_factory=dict)  # of these, what holds where the line says no other
    of: dict[str, list[str]] = field(default_factory=dict)  # parts by their names in tools.toml
    body: dict[str, Any] = field(default_factory=dict)  # fields of every request
    left: dict[str, str] = field(default_factory=dict)  # what is left out, and why
    about: list[str] = field(default_factory=list)  # what is taken in another sense

    def say(self, name: str, values: Sequence[str]) -> None:
        """Take an option of Knee; what may be repeated there is joined here."""
        self.taken[name] = [*self.taken.get(name, ()), *values] if name in _SEVERAL else list(values)

    def has(self, *names: str) -> bool:
        """Return whether the line says one of these options of Knee."""
        return any(name in self.taken or any(own == name for own, _ in self.own) for name in names)

    def one(self, part: str) -> str:
        """Return the last value of a part; "" where the line has none."""
        return (self.of.get(part) or [""])[-1]

    def length(self, name: str) -> str:
        return (self.taken.get(name) or self.usual.get(name) or [""])[-1]

    def arguments(self) -> list[str]:
        """Return the line in Knee's words."""
        said = {**self.usual, **self.taken}
        found = list(self.alone)
        for name, values in [*self.own, *said.items()]:
            for value in values if name in _SEVERAL else [" ".join(values)] if values else []:
                found += [name, value]
            found += [] if values else [name]
        return found

    def notes(self) -> list[str]:
        """Return what to print of the line: what is taken in another sense, and what is left out."""
        out = "; ".join(f"{name} ({why})" for name, why in self.left.items())
        return [*self.about, *([f"left out: {out}"] if out else [])]


_SEVERAL = ("--url", "--header", "--server-meta")


def shown(arguments: Sequence[str]) -> str:
    """Return a line for people, without values of headers."""
    hidden = [
        re.sub(r":.*", ": …", text) if before == "--header" else text
        for before, text in zip(["", *arguments], arguments, strict=False)
    ]
    return shlex.join(hidden)


def complete(parts: Parts, *, certain: bool) -> None:
    """Put the parts together; `certain`: the line is the tool's, so that its defaults hold."""
    _address(parts, certain=certain)
    _lengths(parts)
    _load(parts, certain=certain)
    if served := parts.one("served"):
        parts.taken["--model"] = [served]
        parts.own = [each for each in parts.own if each[0] != "--model"]
    if prefix := parts.one("prefix").removeprefix("0"):
        parts.say("--prefix-tokens", [f"{prefix}x{parts.one('prefixes') or 1}"])
    if parts.one("key") not in _NO_KEY:
        os.environ[API_KEY] = parts.one("key")
        parts.say("--api-key-env", [API_KEY])
        parts.about.append(
            "a key on the command line is seen by every user of this machine; --api-key-env VAR hides it"
        )
    parts.body = {name: value for name, value in parts.body.items() if (name, value) != ("ignore_eos", True)}
    if parts.body:
        typed = [json.loads(values[0]) for name, values in parts.own if name == "--extra-body"]
        parts.own = [each for each in parts.own if each[0] != "--extra-body"]
        merged = {name: value for each in [parts.body, *typed] for name, value in each.items()}
        parts.say("--extra-body", [json.dumps(merged)])


def _address(parts: Parts, *, certain: bool) -> None:
    """Make the address of host, port and path, and write http:// before one that has none."""
    host, port, path = (parts.one(name) for name in ("host", "port", "path"))
    urls = [value for name, values in parts.own if name == "--url" for value in values] + parts.taken.pop("--url", [])
    parts.own = [each for each in parts.own if each[0] != "--url"]
    named = [each for each in parts.alone if "://" in each or each.startswith(("sim:", "unix:"))]
    if host or port:
        start = host if "://" in host else f"http://{host or '127.0.0.1'}"
        urls.append(start.replace("://0.0.0.0", "://127.0.0.1") + (f":{port}" if port else ""))
    if not urls and not parts.alone and not parts.has("--resume", "--list") and certain and parts.url:
        parts.about.append(f"no address: {parts.url}, as {parts.tool} has it")
        urls = [parts.url]
    urls = [each if "://" in each or each.startswith(("sim:", "unix:")) else f"http://{each}" for each in urls]
    if path:
        parts.alone = [each for each in parts.alone if each not in named]
        urls = [each if _path(each) else each.rstrip("/") + "/" + path.lstrip("/") for each in [*named, *urls]]
    if urls:
        parts.say("--url", urls)


def _path(url: str) -> str:
    return url.partition("://")[2].rstrip("/").partition("/")[2]


def _lengths(parts: Parts) -> None:
    """Write the spread of a length with the length."""
    if parts.has("--dataset"):
        parts.usual.pop("--input-tokens", None)
        parts.usual.pop("--output-tokens", None)
    low, high = parts.one("low"), parts.one("high")
    if low or high:
        parts.say("--input-tokens", [low or high if (low or high) == (high or low) else f"{low}..{high}"])
    for name in ("input", "output"):
        option = f"--{name}-tokens"
        mean, sd = parts.length(option), parts.one(f"{name} sd")
        if sd and float(sd):
            parts.say(option, [f"{mean or _MEAN[name]}±{sd}"])
        elif mean and (around := parts.one("around")) and float(around):
            share = float(around)
            parts.say(option, [f"{math.floor(int(mean) * (1 - share)) or 1}..{math.ceil(int(mean) * (1 + share))}"])
        elif mean and (below := parts.one("below")) and float(below) < 1:
            parts.say(option, [f"{int(int(mean) * float(below)) or 1}..{mean}"])


_MEAN = {"input": "512", "output": "128"}  # Knee's own


def _load(parts: Parts, *, certain: bool) -> None:
    """Say what is kept in flight or how often requests begin, and when the run ends."""
    if "".join(parts.taken.get("--rate", ())) in _NO_RATE:
        parts.taken.pop("--rate")
        if not (parts.has("--max-requests") or parts.one("cap") or parts.one("levels") or parts.one("requests")):
            parts.about.append("no rate: all requests at once there; here the load rises until the knee is found")
    levels = [level for text in (*parts.of.get("levels", ()), *_guided_levels(parts)) for level in text.split(",")]
    cap = parts.one("cap")
    if parts.has("--rate"):
        if bound := cap or (levels or [""])[-1]:
            parts.say("--max-concurrency", [bound])
            parts.about.append(f"with a rate, {bound} is the most in flight")
        levels = []
    elif cap and not levels:
        levels = [cap]
        parts.about.append(f"--max-concurrency {cap} holds {cap} in flight, as {parts.tool} does: --levels {cap}")
    requests = [int(text) for text in parts.of.get("requests", ())]
    if requests:
        parts.say("--max-requests", [str(sum(requests) if len(requests) > 1 else requests[0] * (len(levels) or 1))])
    if count := parts.taken.get("--max-requests"):
        if int(count[-1]) < 1:
            del parts.taken["--max-requests"]
        elif not levels and not parts.has("--rate", "--levels", "--max-concurrency", "--arrivals") and certain:
            levels = _usual_load(parts, int(count[-1]))
    if levels and not parts.has("--levels"):
        parts.say("--levels", [",".join(levels)])
    if seconds := parts.one("seconds"):
        number, unit = re.fullmatch(r"([0-9.]*)(.*)", seconds).groups()  # type: ignore[union-attr]
        parts.say("--max-seconds", [f"{float(number or 1) * (len(levels) or 1):g}{unit}"])


def _guided_levels(parts: Parts) -> list[str]:
    """Return the levels of GuideLLM's profile; its rates become --rate."""
    kind, amounts = parts.one("guided"), parts.of.get("amount", [])
    if kind in ("constant", "async", "poisson") or (amounts and not kind):
        parts.say("--rate", [",".join(amounts)] if amounts else [])
        parts.say("--arrivals", ["poisson" if kind == "poisson" else "constant"])
    elif kind == "throughput" and not (amounts or parts.one("cap")):
        parts.about.append("throughput: Knee searches the knee, and the plateau is the most throughput")
    if kind == "synchronous":
        return ["1"]
    return amounts if kind in ("concurrent", "throughput") else []


def _usual_load(parts: Parts, requests: int) -> list[str]:
    """Return what the tool itself keeps in flight where its line says only how many requests."""
    if not parts.load:
        return []
    together = str(requests) if parts.load == "all" else parts.load
    if parts.load == "all":
        parts.say("--start", ["burst"])
    parts.about.append(
        f"no load is given: {together} in flight, as {parts.tool} has it; without it Knee finds the knee"
    )
    return [together]


def value(text: str) -> Any:
    """Return what a text is in JSON; else the text.

    >>> value("0.3"), value("true"), value("low")
    (0.3, True, 'low')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fields(parts: Parts, name: str, texts: Sequence[str]) -> str:
    """Take fields of every request, as JSON or as name:value and name=value."""
    for text in texts:
        found = value(text)
        if isinstance(found, dict):
            parts.body |= found
        elif match := re.fullmatch(r"([^:=]+)[:=](.*)", text):
            parts.body[match[1]] = value(match[2])
        else:
            return f"{name}: {text!r} has no name and value; write it like temperature:0.7"
    return ""


def _headers(parts: Parts, name: str, texts: Sequence[str]) -> str:
    parts.say("--header", [re.sub(r"^([^:=]+)[:=]\s*", r"\1: ", text) for text in texts])
    return ""


def _fact(parts: Parts, name: str, texts: Sequence[str], key: str) -> str:
    parts.say("--server-meta", [f"{key}={texts[0]}"])
    return ""


def _pairs(text: str) -> dict[str, Any]:
    """Return the settings of an option of GuideLLM: a JSON object, or kind=…,name=value; a word alone is the kind."""
    found = value(text)
    if isinstance(found, dict):
        return found
    parts = [part.partition("=") for part in text.split(",")]
    return {name.strip(): value(setting) if equals else "" for name, equals, setting in parts}


def _settings(parts: Parts, name: str, texts: Sequence[str], option: str, key: str) -> str:
    """Take one setting of an option as an option of Knee."""
    found = _pairs(texts[0])
    if key not in found:
        return f"{name}: {texts[0]!r} has no {key}; give {option}"
    parts.say(option, [str(found[key])])
    return ""


def _several(amount: Any) -> list[str]:
    return [str(each) for each in amount] if isinstance(amount, list) else [str(amount)] if amount != "" else []


def _guided(parts: Parts, name: str, texts: Sequence[str]) -> str:
    """Take a profile of GuideLLM: its kind, and its streams or rates."""
    found = _pairs(texts[0])
    kind = str(found.pop("kind", "")) or texts[0]
    amounts = _several(found.pop("streams", "")) or _several(found.pop("rate", "")) or parts.of.get("amount", [])
    parts.of["amount"] = amounts
    parts.of["guided"] = [kind]
    if "max_concurrency" in found:
        parts.of["cap"] = [str(found.pop("max_concurrency"))]
    for setting in found:
        if setting != kind:
            parts.left[f"{name} {setting}"] = "Knee decides it from what it measures"
    if kind in ("sweep", "knee", "goodput"):
        parts.about.append(f"{name} {kind}: Knee searches the knee by itself")
    return ""


def _constraint(parts: Parts, name: str, texts: Sequence[str]) -> str:
    """Take what ends a strategy of GuideLLM."""
    found = _pairs(texts[0])
    kind = str(found.get("kind", ""))
    if kind == "max_duration":
        parts.of["seconds"] = [f"{found.get('seconds', '')}s"]
    elif kind in ("max_requests", "min_requests"):
        parts.of["requests"] = [str(found.get("count", ""))]
    elif kind in ("max_errors", "max_error_rate", "max_global_error_rate"):
        parts.left[f"{name} {kind}"] = "errors above 1 % make a level invalid"
    elif kind == "over_saturation":
        parts.left[f"{name} {kind}"] = "a search ends by itself behind the knee"
    else:
        return f"{name}: {texts[0]!r} has no equal here; give --max-seconds or --max-requests"
    return ""


def _synthetic(parts: Parts, name: str, texts: Sequence[str]) -> str:
    """Take data of GuideLLM: lengths, or a file."""
    text = texts[0]
    if os.path.exists(text):
        parts.say("--dataset", [text])
        return ""
    found = _pairs(text)
    if path := found.get("path"):
        parts.say("--dataset", [str(path)])
    elif "prompt_tokens" not in found:
        return (
            f"{name}: {text!r} is no file of this machine; give --dataset FILE, or prompt_tokens=512,output_tokens=128"
        )
    for theirs, option in (("prompt", "input"), ("output", "output")):
        _one_length(parts, found, theirs, option)
    if prefix := found.get("prefix_tokens"):
        parts.of["prefix"], parts.of["prefixes"] = [str(prefix)], [str(found.get("prefix_count", 1))]
    return ""


def _one_length(parts: Parts, found: dict[str, Any], theirs: str, option: str) -> None:
    if f"{theirs}_tokens" not in found:
        return
    mean, sd = found[f"{theirs}_tokens"], found.get(f"{theirs}_tokens_stdev")
    low, high = found.get(f"{theirs}_tokens_min"), found.get(f"{theirs}_tokens_max")
    text = f"{mean}±{sd}" if sd else str(mean)
    if low and high:
        text = f"{text} in {low}..{high}" if sd else f"{low}..{high}"
    parts.say(f"--{option}-tokens", [text])


def _backend(parts: Parts, name: str, texts: Sequence[str]) -> str:
    """Take a backend of GuideLLM: its address, model and API."""
    found = _pairs(texts[0])
    kind = str(found.pop("kind", "")) or texts[0]
    if not kind.startswith("openai"):
        return f"{name}: {kind!r} has no equal here; start the server, and give its address"
    for key, option in (("target", "--url"), ("model", "--model")):
        if key in found:
            parts.say(option, [str(found[key])])
    form = str(found.get("request_format", ""))
    if form:
        parts.say("--api", ["completions" if "chat" not in form else "chat"])
    if "api_key" in found:
        parts.of["key"] = [str(found["api_key"])]
    return ""


_SCENARIOS: tuple[tuple[str, Callable[..., tuple[str, str]]], ...] = (
    (r"D\((\d+),(\d+)\)", lambda i, o: (i, o)),
    (r"N\((\d+),(\d+)\)/\((\d+),(\d+)\)", lambda i, a, o, b: (f"{i}±{a}", f"{o}±{b}")),
    (r"U\((\d+),(\d+)\)/\((\d+),(\d+)\)", lambda i, a, o, b: (f"{i}..{a}", f"{o}..{b}")),
    (r"U\((\d+),(\d+)\)", lambda i, o: (f"1..{i}", f"1..{o}")),
    (r"E\((\d+)\)", lambda i: (i, "")),
)


def _scenario(parts: Parts, name: str, texts: Sequence[str]) -> str:
    """Take the lengths of a traffic scenario of genai-bench."""
    if parts.of.get("scenario"):
        return f"{name}: a run has one; run Knee once for each"
    parts.of["scenario"] = list(texts)
    for pattern, lengths in _SCENARIOS:
        if match := re.fullmatch(pattern, texts[0].replace(" ", "")):
            for option, text in zip(("--input-tokens", "--output-tokens"), lengths(*match.groups()), strict=True):
                if text:
                    parts.say(option, [text])
            return ""
    return f"{name}: {texts[0]!r} has no equal here; give --input-tokens and --output-tokens, or --dataset FILE"


READ: dict[str, Callable[..., str]] = {
    "backend": _backend,
    "constraint": _constraint,
    "fact": _fact,
    "fields": _fields,
    "guided": _guided,
    "headers": _headers,
    "scenario": _scenario,
    "settings": _settings,
    "synthetic": _synthetic,
}
