"""The code of a page or a notebook, run as a notebook runs it: cell after cell, inside a running loop."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from pathlib import Path
from typing import Any


def blocks(page: str) -> list[str]:
    """The Python of a Markdown page."""
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def cells(notebook: Path) -> list[str]:
    """The code of a notebook, without the kernel's own commands (`%matplotlib inline`)."""
    found = json.loads(notebook.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    return ["\n".join(line for line in source.splitlines() if not line.startswith("%")) for source in sources]


def run(code: list[str]) -> list[Any]:
    """The value of each piece's last expression, None where it ends in a statement."""

    async def main() -> list[Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        return [await _run(piece, names) for piece in code]

    return asyncio.run(main())


async def _run(piece: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(piece)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    await _awaited(compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    expression = ast.Expression(last.value)
    return await _awaited(compile(expression, "<cell>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)


async def _awaited(code: Any, names: dict[str, Any]) -> Any:
    value = eval(code, names)
    return await value if inspect.iscoroutine(value) else value
