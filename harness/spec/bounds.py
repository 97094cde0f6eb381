"""Bounds of a field's value with the message for a value beyond them, and msgspec's complaints in those words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from harness.base.errors import HarnessError, nearest

Must = Callable[[bool, str, str, str], None]  # raises unless the first holds: path, fact, way out


def bound(fact: str, way_out: str, **limits: Any) -> msgspec.Meta:
    """Return a bound of a value, as msgspec has it, with the message for a value beyond it."""
    return msgspec.Meta(extra={"fact": fact, "way_out": way_out}, **limits)


def above_0(way_out: str) -> msgspec.Meta:
    return bound("it must be above 0", way_out, gt=0)


def located(message: str, whole: type[msgspec.Struct], place: str) -> HarnessError:
    """Return msgspec's complaint about data that should be a `whole`: fact, path, way out."""
    complaint, _, path = message.removesuffix("`").rpartition(" - at `")
    if not complaint:
        complaint, path = message.removesuffix("`"), "$"
    kind, field = _type_at(path, whole), path[: path.rindex("[")] if path.endswith("]") else path
    unknown, value = complaint.partition("unknown field `")[2].removesuffix("`"), complaint.partition("enum value ")[2]
    missing = complaint.partition("missing required field `")[2].removesuffix("`")
    limit = next(iter(getattr(kind, "__metadata__", ())), None) if ", got " not in complaint else None
    if unknown:
        fact = f"unknown field '{unknown}' at {path}.{unknown}"
        way_out = nearest(unknown, getattr(kind, "__struct_encode_fields__", ()))
    elif missing:
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
