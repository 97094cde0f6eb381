"""JSON schemas of structs, compared whatever the Python."""

from __future__ import annotations

from typing import Any


def unindented(value: Any) -> Any:
    """Without the line breaks of descriptions: from Python 3.13 on docstrings lose their indent."""
    if isinstance(value, dict):
        return {key: unindented(each) for key, each in value.items()}
    if isinstance(value, list):
        return [unindented(each) for each in value]
    return " ".join(value.split()) if isinstance(value, str) else value
