"""A document as Markdown: report.md and map.md, which show the pictures in their folder."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from harness.report import document as doc


def render(document: doc.Document) -> str:
    """Return the document as CommonMark with tables. The scenario, which a page folds away, is left out."""
    parts = [
        f"# {literal(document.title)}" if document.title else "",
        literal(document.subtitle),
        f"> **SIMULATED**: {literal(document.simulated)}" if document.simulated else "",
        *map(_section, document.sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def literal(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line.

    >>> print(literal("a|b <i> `x` &lt; max_num_seqs"), literal("1. # x\n\n# y"))
    a\|b \<i> \`x\` \&lt; max\_num\_seqs 1\. # x # y
    """
    line = re.sub(r"([\\`*_\[\]<|~])|&(?=#?\w+;)", lambda found: f"\\{found[0]}", " ".join(text.split()))
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-#+=>]))", r"\1\\", line)


def _section(section: doc.Section) -> str:
    """Return a section with its title; one with a picture has no title, for the picture has one."""
    facts = [_fact(fact) for fact in section.facts]
    command = textwrap.indent(section.command, "      ")
    again = [f"- to run it again:\n\n{command}"] if command else []
    parts = [
        "\n".join([*facts, *again]),
        f"![{literal(section.alt)}]({section.picture})" if section.picture else "",
        _table(section.columns),
        "\n".join(f"- {literal(line)}" for line in section.lines),
        "\n".join(map(_remark, section.remarks)),
        literal(section.note),
    ]
    filled = [part for part in parts if part]
    title = [f"## {literal(section.title)}"] if section.title and filled and not section.picture else []
    return "\n\n".join([*title, *filled])


def _fact(fact: doc.Fact) -> str:
    return f"- {fact.label}: {literal(fact.value)}" + (f"; {literal(fact.detail)}" if fact.detail else "")


def _table(columns: Sequence[doc.Column]) -> str:
    heads = [literal(column.head) for column in columns]
    rules = ["---" if column.words else "---:" for column in columns]
    rows = [list(map(_cell, cells)) for cells in doc.rows(columns)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *rows) if row)


def _cell(cell: doc.Cell) -> str:
    return f"[{literal(cell.text)}]({cell.to}.md)" if isinstance(cell, doc.FileLink) else literal(str(cell))


def _remark(remark: doc.Remark) -> str:
    where = f" at {remark.where}" if remark.where else ""
    advice = f" → {literal(remark.advice)}" if remark.advice else ""
    return f"- **{remark.gravity}** {literal(remark.code)}{where}: {literal(remark.message)}{advice}"
