"""JSON Schema, as far as a question's answer needs it: type, enum, const, properties, required, items and bounds. Pure.

What else a schema may have is refused when it is read: an answer is never held against half of a schema. Names and
meanings are those of draft 2020-12 (json-schema.org). Left out: references, patterns, formats, and combining schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or value == int(value))
        if isinstance(value, int | float)
        else False
    ),
}
_OF_TYPE = {
    "minimum": "number", "maximum": "number", "minLength": "string", "maxLength": "string", "minItems": "array",
    "maxItems": "array", "required": "object", "properties": "object", "additionalProperties": "object",
    "items": "array",
}  # fmt: skip
_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_ANNOTATIONS = ("$schema", "title", "description", "examples", "default")
KNOWN = ("type", "enum", "const", *_OF_TYPE)


def check(schema: Any, path: str = "$") -> None:
    """ValueError, with its path, for what is no schema or one that is not understood here.

    >>> check({"type": "object", "properties": {"a": {"pattern": "x"}}})
    Traceback (most recent call last):
    ValueError: 'pattern' at $.properties.a is not supported
    """
    if not isinstance(schema, dict):
        raise ValueError(f"no schema at {path}")
    for key, value in schema.items():
        at = f"{path}.{key[:40]}"
        if key not in KNOWN and key not in _ANNOTATIONS:
            raise ValueError(f"'{key[:40]}' at {path} is not supported")
        if key == "type" and not set(_names(value)) <= set(_TYPES):
            raise ValueError(f"no known type at {at}")
        if (key == "enum" and not isinstance(value, list)) or (key == "properties" and not isinstance(value, dict)):
            raise ValueError(f"no {'list' if key == 'enum' else 'table'} at {at}")
        if key in _NUMBERS and not _TYPES["number"](value):
            raise ValueError(f"no number at {at}")
        if key == "required" and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise ValueError(f"no list of names at {at}")
        if key == "additionalProperties" and not isinstance(value, bool):
            raise ValueError(f"neither true nor false at {at}")
        if key == "items":
            check(value, at)
        for name, inner in value.items() if key == "properties" else ():
            check(inner, f"{at}.{name[:40]}")


def _names(kind: Any) -> list[str]:
    kinds = kind if isinstance(kind, list) else [kind]
    return [each if isinstance(each, str) else "" for each in kinds] or [""]


def holds(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value is as a checked schema says.

    >>> holds({"type": "object", "required": ["n"], "properties": {"n": {"minimum": 1}}}, {"n": 0})
    False
    """
    return all(_one_holds(key, schema, value) for key in schema if key in KNOWN)


def _one_holds(key: str, schema: dict[str, Any], value: Any) -> bool:
    """Whether one of a schema's keywords allows a value; one for another type than the value's allows all."""
    asked = schema[key]
    if key in _OF_TYPE and not _TYPES[_OF_TYPE[key]](value):
        return True
    match key:
        case "type":
            return any(_TYPES[name](value) for name in _names(asked))
        case "enum":
            return any(_equal(value, each) for each in asked)
        case "const":
            return _equal(value, asked)
        case "minimum" | "maximum":
            return bool(value >= asked if key == "minimum" else value <= asked)
        case "minLength" | "minItems":
            return bool(len(value) >= asked)
        case "maxLength" | "maxItems":
            return bool(len(value) <= asked)
        case "required":
            return all(name in value for name in asked)
        case "properties":
            return all(holds(inner, value[name]) for name, inner in asked.items() if name in value)
        case "items":
            return all(holds(asked, each) for each in value)
        case _:  # additionalProperties
            return bool(asked) or set(value) <= set(schema.get("properties", {}))


def _equal(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
