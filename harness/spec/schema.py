"""The JSON schema of scenario files, for editors: names, kinds and bounds of keys, and which numbers may be texts.

What fields may be together is left to `rules`: `knee run FILE --print-scenario` says it.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from harness.spec import reading, reuse
from harness.spec.scenario import Scenario

# Of a class and of the tables of a workload: the keys whose numbers may be texts with a unit.
_OF_TABLES = {
    "PrefixSpec": reuse.COUNTED, "SessionSpec": reuse.COUNTED, "NodeSpec": reuse.COUNTED, "Cancel": ("after_s",),
}  # fmt: skip
_SIZES = {"type": "object", "additionalProperties": {"type": "object"}}  # tables that are laid over the file's
_MODELS = {"models": {"type": "array", "items": {"type": "string"}, "minItems": 1}, "zipf": {"type": "number"}}


def schema() -> dict[str, Any]:
    """Return the schema, as plain data."""
    found = msgspec.json.schema(Scenario)
    tables: dict[str, Any] = found["$defs"]
    for each in tables.values():
        if "description" in each:  # a docstring: Python before 3.13 leaves its indentation
            each["description"] = inspect.cleandoc(each["description"])
        each |= {"additionalProperties": False} if "properties" in each else {}
    for table, key in (*reading.SECONDS, *reading.COUNTS, *reading.SIZES, ("ramp", "max_ttft")):
        _may_be_text(_table(tables, table)["properties"][key])
    for name, keys in _OF_TABLES.items():
        for key in {*keys} & {*tables[name]["properties"]}:
            _may_be_text(tables[name]["properties"][key])
    for name in ("Scenario", "ClassSpec"):
        tables[name]["properties"]["slo"]["additionalProperties"] = {"type": ["number", "string"]}
    tables["Scenario"]["properties"]["size"] = _SIZES
    tables["ClassSpec"]["properties"] |= _MODELS
    tables["ClassSpec"]["required"] = []  # classes of `models` have their names
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A scenario of Knee", **found}


def _table(tables: dict[str, Any], name: str) -> Any:
    """Return the schema of a scenario's table by its name in the file."""
    told = tables["Scenario"]["properties"][name]
    return tables[told["$ref"].rpartition("/")[2]] if "$ref" in told else _table_of_several(tables, told)


def _table_of_several(tables: dict[str, Any], told: Any) -> Any:
    return next(tables[each["$ref"].rpartition("/")[2]] for each in told["anyOf"] if "$ref" in each)


def _may_be_text(field: dict[str, Any]) -> None:
    """Let a number, or the numbers of a list, be texts as well, in place."""
    if field.get("type") == "array":
        _may_be_text(field["items"])
        return
    outer = {key: field.pop(key) for key in [*field] if key in ("default", "description")}
    several = field.pop("anyOf", None) or [dict(field)]
    field.clear()
    field |= {"anyOf": [*several, {"type": "string"}], **outer}
