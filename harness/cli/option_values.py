"""The texts of options as values, and the command line without its secrets, for the manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError


def json_object(text: str, flag: str, example: str) -> dict[str, Any]:
    """The JSON object that an option's text holds."""
    from harness.base import decoding

    with decoding.reading(flag, "JSON", f"write it like '{example}'"):
        value = decoding.json(text.encode())
    if not isinstance(value, dict):
        raise HarnessError("not a JSON object", place=flag, way_out=f"write it like '{example}'")
    return value


def facts(texts: tuple[str, ...]) -> dict[str, str]:
    """Facts from --server-meta: each text is a K=V pair or the path of a JSON file that holds an object."""
    from harness.base import decoding

    facts: dict[str, str] = {}
    for each in texts:
        if "=" in each or not Path(each).is_file():
            facts.update([pair(each, "=", "--server-meta")])
            continue
        example = '{"version": "1.0"}'
        with decoding.reading(f"--server-meta {each}", "a JSON file", f"write it like '{example}'"):
            text = decoding.content(Path(each)).decode()
        read = json_object(text, "--server-meta", example)
        facts.update({key: str(value) for key, value in read.items()})
    return facts


def dataset(text: str) -> dict[str, Any]:
    """Return the file of --dataset, with its format where that stands before it: plain:FILE."""
    name, colon, path = text.partition(":")
    named = bool(name and colon) and Path(path).exists() and not Path(text).exists()
    return {"path": path, "format": name} if named else {"path": text}


def pair(text: str, mark: str, flag: str) -> tuple[str, str]:
    """The name and the value on either side of the mark."""
    key, found, value = text.partition(mark)
    if not found or not key.strip():
        raise HarnessError(f"{text!r} has no '{mark}'", place=flag, way_out=f"write it like name{mark}value")
    return key.strip(), value.strip()


def headers(texts: Sequence[str]) -> dict[str, str]:
    """Headers from --header, values by name. The error does not quote the text, which may be a key."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition(":"))
        if not name or not value:
            way_out = "write it like 'Name: value', in quotes"
            raise HarnessError("not a name and a value", place="--header", way_out=way_out)
        found[name] = value
    return found


def shown(arguments: Sequence[str], secrets: Sequence[str]) -> list[str]:
    """The command line without the values of headers and of secret fields."""
    from harness.base import secrecy

    plain = [secret for secret in secrets if len(secret) >= 8]  # a shorter one may be part of any number
    out: list[str] = []
    flag = ""
    for argument in arguments:
        name, found, value = argument.partition("=")
        if not flag and found and name in ("--header", "--extra-body"):
            out, flag, argument = [*out, name], name, value
        if flag == "--header":
            argument = f"{argument.partition(':')[0]}: {secrecy.HIDDEN}"
        elif flag == "--extra-body":
            argument = json.dumps(secrecy.shown(json_object(argument, flag, "")))
        flag = argument if not flag and argument in ("--header", "--extra-body") else ""
        out.append(secrecy.redact(argument, plain))
    return out
