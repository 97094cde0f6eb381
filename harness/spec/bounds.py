"""A table from outside as its type: a field that the type does not have, and a value out of bounds, are one line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from harness.base.errors import HarnessError, nearest

T = TypeVar("T", bound=msgspec.Struct)
Read = Callable[[str, str], Any]  # a text and its place: its value, or HarnessError
Must = Callable[[bool, str, str, str], None]  # raises unless the first holds: path, fact, way out


def bound(fact: str, way_out: str, read: Read | None = None, **limits: Any) -> msgspec.Meta:
    """Return a bound of a value, as msgspec has it, with the message for a value beyond it; `read` parses a text."""
    return msgspec.Meta(extra={"fact": fact, "way_out": way_out, "read": read}, **limits)


def above_0(way_out: str, read: Read | None = None) -> msgspec.Meta:
    return bound("it must be above 0", way_out, read, gt=0)


def reader_of(kind: Any) -> Read | None:
    """Return how a text is read where a value of this type belongs; None if a text is none."""
    return next((meta.extra["read"] for meta in getattr(kind, "__metadata__", ()) if meta.extra), None)


def typed(tree: Any, kind: type[T], place: str) -> T:
    """Return plain data (TOML, JSON) as `kind`, texts like "2s" as values; raise HarnessError for unknown fields.

    Also for a value out of bounds. A type itself is not strict: a manifest has what a later version added.
    """
    values = _values(tree, kind, "$", place)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise located(str(error), kind, place) from None


def _values(value: Any, kind: Any, path: str, place: str) -> Any:
    """Return plain data, each text read as its type says; raise HarnessError for an unknown field."""
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        read = reader_of(kind)
        if read is not None and isinstance(value, str):
            return read(value, f"{place}: {path}")
        return _values(value, members[0], path, place)
    if origin in (Union, UnionType):
        for member in members:
            value = _values(value, member, path, place)
    elif origin in (list, Sequence):
        if isinstance(value, dict) and _is_table(members[0]):
            raise HarnessError(f"one table is no list at {path}", place=place, way_out=f"write it [[{path[2:]}]]")
        if isinstance(value, list):
            return [_values(each, members[0], f"{path}[{i}]", place) for i, each in enumerate(value)]
    elif isinstance(value, dict) and origin is dict:
        return {name: _values(each, members[1], f"{path}.{name}", place) for name, each in value.items()}
    elif isinstance(value, dict) and _is_table(kind):
        types = _fields(kind)
        for name in value:
            if name not in types:
                fact = f"unknown field '{name}' at {path}.{name}"
                raise HarnessError(fact, place=place, way_out=nearest(name, types))
        return {name: _values(each, types[name], f"{path}.{name}", place) for name, each in value.items()}
    return value


@functools.cache
def _fields(table: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a table's fields by their names in a file."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(table)}


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def located(message: str, whole: type[msgspec.Struct], place: str) -> HarnessError:
    """Return msgspec's complaint about data that should be a `whole`: fact, path, way out."""
    complaint, _, path = message.removesuffix("`").rpartition(" - at `")
    if not complaint:
        complaint, path = message.removesuffix("`"), "$"
    kind, field = _type_at(path, whole), path[: path.rindex("[")] if path.endswith("]") else path
    value = complaint.partition("enum value ")[2]
    missing = complaint.partition("missing required field `")[2].removesuffix("`")
    limit = next((each for each in getattr(kind, "__metadata__", ()) if "fact" in (each.extra or ())), None)
    limit = None if ", got " in complaint else limit
    if missing:
        fact, way_out = f"no '{missing}' at {path}", f"write {missing} = …"
    elif value:
        fact = f"unknown {field.rpartition('.')[2]} {value} at {field}"
        way_out = "known: " + ", ".join(get_args(kind))
    elif limit is not None:
        fact, way_out = f"{limit.extra['fact']} at {field}", limit.extra["way_out"]
    else:
        fact, way_out = message.replace("`", "'"), "see `knee run --print-scenario`"
    return HarnessError(fact, place=place, way_out=way_out)


def _type_at(path: str, whole: type[msgspec.Struct]) -> Any:
    """Return the annotated type of the field at a path like "$.ramp.levels[0]"; of a union the first type."""
    kind: Any = whole
    for step in path.split(".")[1:]:
        name, element, _ = step.partition("[")
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            break
        kind = _fields(kind).get(name, kind)
        kind = get_args(kind)[0] if get_origin(kind) in (Union, UnionType) else kind
        kind = get_args(kind)[0] if element and get_origin(kind) in (list, Sequence) else kind
    return kind
