"""A scenario out of a file or of plain data, strictly: texts become values, and what cannot be measured is refused.

What one field may be is in its type, what several may be together in `rules`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from harness.base import decoding, units
from harness.base.errors import HarnessError, nearest
from harness.spec import classes, reuse, rules, traffic
from harness.spec.bounds import reader_of, typed
from harness.spec.scenario import Hardware, Scenario

# Fields of a table that one which is laid over it takes the place of.
_REPLACED = {
    "levels": ("rates", "search_rate"), "rates": ("levels", "search_rate"), "search_rate": ("levels", "rates"),
    "max_concurrency": ("levels",), "url": ("urls",), "urls": ("url",),
}  # fmt: skip


def load(path: str, size: str | None = None) -> Scenario:
    """Return the scenario in a TOML file, checked field by field; options may still be laid over it.

    A file may have sizes: the tables of [size.NAME] are laid over its own. None: the first of them.
    """
    with decoding.reading(path, "TOML", "give the path of a scenario.toml, or a name of `knee run --list`"):
        raw = decoding.toml(decoding.content(Path(path)))
    sizes = raw.pop("size", {})
    if not isinstance(sizes, dict) or (size is not None and size not in sizes):
        known = sizes if isinstance(sizes, dict) else {}
        way_out = nearest(size or "", known) if known else "leave --size out: this scenario has one size"
        raise HarnessError(f"no size {size!r}", place=path, way_out=way_out)
    chosen = sizes.get(size or next(iter(sizes), ""), {})
    return read(_merged(raw, chosen), place=path)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables merged: a value of `above` replaces that of `below`, tables are merged in turn."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def build(raw: Mapping[str, Any], *, place: str) -> Scenario:
    """Return the whole scenario from plain data: nothing is laid over it, and every field that is set has an effect."""
    scenario = read(raw, place=place)
    return rules.with_effect(scenario, scenario, (), place)


def laid_over(base: Scenario | None, fields: Mapping[str, Any], *, place: str) -> Scenario:
    """Return a scenario (None: an empty one) with fields, by table, set over it; refuse a field without an effect.

    >>> laid_over(None, {"ramp": {"levels": [1, 2], "level_seconds": "2s"}}, place="").ramp.levels
    [1, 2]
    """
    tree: dict[str, Any] = {} if base is None else msgspec.to_builtins(base)
    typed = set()
    for table, values in fields.items():
        if not isinstance(values, Mapping) or table == "slo":
            tree[table] = values
            continue
        keys = tree.setdefault(table, {})
        for name in values:
            for other in _REPLACED.get(name, ()):
                keys.pop(other, None)
        keys.update(values)
        typed |= {f"{table}.{name}" for name in values}
    hardware, of_endpoint = tree.get("hardware", {}), tree.get("target", {}).get("url")
    if {"hardware.tp", "hardware.gpus"} & typed == {"hardware.tp"} and hardware.get("gpus") == Hardware().gpus:
        del hardware["gpus"]  # nobody gave it: a replica's count
    if of_endpoint == "sim:" and "hardware.max_num_seqs" in typed:
        tree.setdefault("sim", {})["max_num_seqs"] = hardware["max_num_seqs"]
    return rules.with_effect(read(tree, place=place), base or Scenario(), typed, place)


def read(raw: Mapping[str, Any], *, place: str) -> Scenario:
    """Return the scenario from plain data; an unknown name is an error with its path and the nearest right one."""
    with decoding.reading(place, "a scenario", "write what can be measured"):
        decoding.check(dict(raw))
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    # An empty list says nothing, and TOML would not print it.
    if isinstance(workload := tree.get("workload"), dict):
        tree["workload"] = {
            key: value for key, value in workload.items() if key not in ("node", "tools") or value != []
        }
    if isinstance(tree.get("target"), dict):
        urls = tree["target"].get("urls")
        if isinstance(urls, list) and urls:
            tree["target"].setdefault("url", urls[0])  # some parts need one server
    if isinstance(hardware := tree.get("hardware"), dict) and hardware.get("tp"):
        hardware.setdefault("gpus", hardware["tp"])  # one replica over all
    scenario = typed(tree, Scenario, place)
    check(scenario, place=place)
    return scenario


def check(scenario: Scenario, *, place: str) -> None:
    """Refuse what cannot be measured, before anything is."""

    def must(holds: bool, path: str, fact: str, way_out: str) -> None:
        if not holds:
            raise HarnessError(f"{fact} at $.{path}", place=place, way_out=way_out)

    workload, ramp = scenario.workload, scenario.ramp
    traffic.parse(ramp.arrivals, f"{place}: $.ramp.arrivals")
    reuse.pauses(ramp.think or 0.0, f"{place}: $.ramp.think")
    reuse.image_size(workload.image_size or reuse.IMAGE_SIZE, f"{place}: $.workload.image_size")
    for name, limit in scenario.slo.items():
        units.known_limit(name, f"{place}: $.slo")
        must(0 < limit < math.inf, f"slo.{name}", "a limit is above 0", "write it like '2s' or '50ms'")
    rules.must_agree(scenario, place)
    classes.check(scenario.class_ or (), must, place)
    if workload.dataset:
        reuse.check_dataset(workload.dataset, must, place)
    reuse.check(workload.prefix or None, workload.session or None, workload.node or [], must, place)


# ---- for editors -----------------------------------------------------------------------------------------------------

_SIZES = {"type": "object", "additionalProperties": {"type": "object"}}  # tables that are laid over the file's


def schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files: names, kinds and bounds of keys, and which numbers may be texts.

    What fields may be together is left to `rules`: `knee run FILE --print-scenario` says it.
    """
    schema = msgspec.json.schema(Scenario)
    tables: dict[str, Any] = schema["$defs"]
    for table in tables.values():
        if "description" in table:  # a docstring: Python before 3.13 leaves its indentation
            table["description"] = inspect.cleandoc(table["description"])
        table |= {"additionalProperties": False} if "properties" in table else {}
    for kind in dict.fromkeys(_kinds(Scenario)):
        for field in msgspec.structs.fields(kind):
            if _may_be_text(field.type):
                _allow_text(tables[kind.__name__]["properties"][field.encode_name])
    tables["Scenario"]["properties"]["size"] = _SIZES
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A scenario of Knee", **schema}


def _kinds(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield every struct type in an annotated type: itself, those of its fields, and theirs in turn."""
    inner = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        inner = tuple(field.type for field in msgspec.structs.fields(kind))
    for each in inner:
        yield from _kinds(each)


def _may_be_text(kind: Any) -> bool:
    """Return whether a number of that type, or in it, may be written as a text, and the type alone does not say so."""
    members = get_args(kind)[1:] if get_origin(kind) is dict else get_args(kind)
    return reader_of(kind) is not None or (str not in members and any(map(_may_be_text, members)))


def _allow_text(field: dict[str, Any]) -> None:
    """Change a field's JSON schema in place, so that its number, or those of its list or table, may be texts too."""
    if field.get("type") in ("array", "object"):
        _allow_text(field["items" if field["type"] == "array" else "additionalProperties"])
        return
    outer = {key: field.pop(key) for key in [*field] if key in ("default", "description")}
    several = field.pop("anyOf", None) or [dict(field)]
    field.clear()
    field |= {"anyOf": [*several, {"type": "string"}], **outer}
