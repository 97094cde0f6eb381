"""Draw the rooms of harness/ from its imports, between two markers of docs/design.md.

An arrow of the picture goes from a room to one that it imports. Arrows that follow from others are left out: where
`cli` imports `run` and `run` imports `load`, none goes from `cli` to `load`. The list gives each room's duty, which is
the first sentence of its `__init__.py`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_rooms import ROOMS, graph_of, modules, room_of

PAGE = Path(__file__).parents[1] / "docs" / "design.md"
BEGIN, END = "<!-- made by scripts/rooms -->\n", "<!-- until here -->\n"


def arrows(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, needs in graph_of(sources).items():
        if (room := _folder(module)) is not None:
            found[room] |= {other for name in needs if (other := _folder(name)) and other != room}
    return found


def _folder(module: str) -> str | None:
    """Return the room that a module is a file of; None for the two files at the top of the package."""
    _, _, below = module.partition(".")
    return room_of(module) if below.partition(".")[0] in ROOMS else None


def direct(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return a graph without the arrows that follow from others; it has no circles.

    >>> direct({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """

    def below(room: str) -> set[str]:
        return graph[room].union(*(below(other) for other in graph[room]))

    return {room: needs.difference(*(below(other) for other in needs)) for room, needs in graph.items()}


def duty(source: str) -> str:
    """Return the first sentence of a room's docstring.

    >>> duty('"Results for people: tables. More."')
    'Results for people: tables'
    """
    first = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
    return " ".join(first.split()).partition(". ")[0].removesuffix(".")


def text(sources: dict[str, str]) -> str:
    """Return the picture as a Mermaid graph, and the table as Markdown."""
    graph = direct(arrows(sources))
    lines = [f"    {room} --> {other}" for room in ROOMS for other in ROOMS if other in graph[room]]
    rows = [f"- `{room}`: {duty(sources[f'harness.{room}.__init__'])}" for room in ROOMS]
    return "\n".join(["```mermaid", "graph TD", *lines, "```", "", *rows, ""])


def page(now: str, made: str) -> str:
    """Return the page with the part between the markers made anew."""
    before, _, rest = now.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + made + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), text(modules())))
