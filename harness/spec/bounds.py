"""A table from outside as its type: a field that the type does not have, and a value out of bounds, are one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from harness.base.errors import HarnessError, nearest

T = TypeVar("T", bound=msgspec.Struct)
Must = Callable[[bool, str, str, str], None]  # raises unless the first holds: path, fact, way out


def bound(fact: str, way_out: str, **limits: Any) -> msgspec.Meta:
    """Return a bound of a value, as msgspec has it, with the message for a value beyond it."""
    return msgspec.Meta(extra={"fact": fact, "way_out": way_out}, **limits)


def above_0(way_out: str) -> msgspec.Meta:
    return bound("it must be above 0", way_out, gt=0)


def typed(tree: Any, kind: type[T], place: str) -> T:
    """Return plain data as that type; HarnessError for a field that it does not have, or for a value out of bounds.

    A type itself is not strict: a manifest has what a later version added.
    """
    if (found := next(_unknown(tree, kind, "$"), None)) is not None:
        path, name, known = found
        raise HarnessError(f"unknown field '{name}' at {path}.{name}", place=place, way_out=nearest(name, known))
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise located(str(error), kind, place) from None


def _unknown(value: Any, kind: Any, path: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the path of each table with a field that its type does not have, the field's name, and the right ones."""
    if get_origin(kind) in (Annotated, Union, UnionType):
        members = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
        for each in members:
            yield from _unknown(value, each, path)
    elif isinstance(value, list) and get_origin(kind) in (list, Sequence):
        for i, each in enumerate(value):
            yield from _unknown(each, get_args(kind)[0], f"{path}[{i}]")
    elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for name, each in value.items():
            if name in types:
                yield from _unknown(each, types[name], f"{path}.{name}")
            else:
                yield path, name, tuple(types)


def located(message: str, whole: type[msgspec.Struct], place: str) -> HarnessError:
    """Return msgspec's complaint about data that should be a `whole`: fact, path, way out."""
    complaint, _, path = message.removesuffix("`").rpartition(" - at `")
    if not complaint:
        complaint, path = message.removesuffix("`"), "$"
    kind, field = _type_at(path, whole), path[: path.rindex("[")] if path.endswith("]") else path
    value = complaint.partition("enum value ")[2]
    missing = complaint.partition("missing required field `")[2].removesuffix("`")
    limit = next(iter(getattr(kind, "__metadata__", ())), None) if ", got " not in complaint else None
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
    """Return the type that a path leads to, as it is annotated; of several kinds the first, without None."""
    kind: Any = whole
    for step in path.split(".")[1:]:
        name, element, _ = step.partition("[")
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            break
        kind = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}.get(name, kind)
        kind = get_args(kind)[0] if get_origin(kind) in (Union, UnionType) else kind
        kind = get_args(kind)[0] if element and get_origin(kind) in (list, Sequence) else kind
    return kind
