"""A document as Markdown, for report.md and its like beside the pictures that it shows."""

from __future__ import annotations

import re

from harness.report import document as doc


def render(document: doc.Document) -> str:
    """The document as CommonMark with tables. What is folded away on a page is left out."""
    parts = [
        f"# {literal(document.title)}" if document.title else "",
        literal(document.below),
        f"> **SIMULATED**: {literal(document.simulated)}" if document.simulated else "",
        *map(_section, document.sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def literal(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> print(literal("a|b <i> `x` &lt; max_num_seqs"), literal("1. # x\n\n# y"))
    a\|b \<i> \`x\` \&lt; max\_num\_seqs 1\. # x # y
    """
    line = re.sub(r"([\\`*_\[\]<|~])|&(?=#?\w+;)", lambda found: f"\\{found[0]}", " ".join(text.split()))
    return re.sub(r"^(\d+(?=[.)](?:\s|$))|(?=[-#+=>]))", r"\1\\", line)


def _section(section: doc.Section) -> str:
    """A section with its title; a picture says what it is by itself."""
    parts = [part for block in section.blocks if (part := _block(block))]
    titled = parts and section.title and not any(isinstance(block, doc.Charts) for block in section.blocks)
    return "\n\n".join([f"## {literal(section.title)}"] * bool(titled) + parts)


def _block(block: doc.Block) -> str:
    match block:
        case doc.Answer():
            return "\n".join(map(_fact, block.facts))
        case doc.Facts():
            again = [f"- again:\n\n{_indented(block.command)}"] if block.command else []
            return "\n".join([*map(_fact, block.facts), *again])
        case doc.Table():
            return _table(block.columns)
        case doc.Remarks():
            return "\n".join(map(_remark, block.remarks))
        case doc.Charts():
            return f"![{literal(block.alt)}]({block.picture})" if block.picture else ""
        case doc.Lines():
            return "\n".join(f"- {literal(line)}" for line in block.lines)
        case doc.Note():
            return literal(block.text)
        case doc.Folded():
            return ""


def _fact(fact: doc.Fact) -> str:
    return f"- {fact.label}: {literal(fact.value)}" + (f"; {literal(fact.detail)}" if fact.detail else "")


def _indented(command: str) -> str:
    return "\n".join(f"      {line}" for line in command.splitlines())


def _table(columns: list[doc.Column]) -> str:
    heads = [literal(column.head) for column in columns]
    rules = ["---" if column.words else "---:" for column in columns]
    rows = [list(map(_cell, cells)) for cells in zip(*(column.cells for column in columns), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *rows) if row)


def _cell(cell: str | doc.Link) -> str:
    return f"[{literal(cell.text)}]({cell.to})" if isinstance(cell, doc.Link) else literal(cell)


def _remark(remark: doc.Remark) -> str:
    where = f" at {remark.where}" if remark.where else ""
    advice = f" → {literal(remark.advice)}" if remark.advice else ""
    return f"- **{remark.severity}** {literal(remark.code)}{where}: {literal(remark.message)}{advice}"
