"""What requests of a class ask for in fields of their own."""

from __future__ import annotations

from typing import Any

from harness.spec.scenario import Scenario


def class_fields(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """What the bodies of each class have of their own, as OpenAI's API and vLLM's have it; by the class's name."""
    found: dict[str, dict[str, Any]] = {}
    for each in scenario.class_ or ():
        fields: dict[str, Any] = {}
        if each.model:
            fields["model"] = each.model
        if each.priority is not None:
            fields["priority"] = each.priority
        if each.structured:
            fields["response_format"] = {"type": "json_object"}
        if fields:
            found[each.name] = fields
    return found
