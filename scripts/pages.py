"""The pages for people and for language models: llms.txt, and the folder that mkdocs builds the site from.

    python scripts/pages.py          # writes llms.txt and build/site-source; a test compares llms.txt

The folder has README.md, every page of docs/, and each file that one of them links to, at the same relative places.
So the links of the site are those of the repository.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
LLMS = ROOT / "llms.txt"
SOURCE = ROOT / "build" / "site-source"
INDEXES = ("report.md", "README.md", "__init__.py")  # what a link to a folder means, the first that it has
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_NO_PROSE = re.compile(r"#|```|    |\||!\[|<|- |\d+\. ")


def nav() -> dict[str, list[tuple[str, str]]]:
    """Return heading → (title, path) of each page, in the order of the site."""
    found = {}
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    for section in config["nav"]:
        ((heading, entries),) = section.items()
        pages = [{heading: entries}] if isinstance(entries, str) else entries
        found[heading] = [next(iter(page.items())) for page in pages]
    return found


def links(page: str) -> list[str]:
    """Return the targets of a page's links that stay in the repository.

    >>> links("See [a](b.md#c) and `[no](d.md)` and [e](https://example.com).")
    ['b.md#c']
    """
    return [link for link in _LINK.findall(_CODE.sub("", page)) if "://" not in link and not link.startswith("mailto:")]


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them.

    >>> anchors("# A – `b_c`: 3")
    {'a--b_c-3'}
    """
    heads = _HEADING.findall(re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def first_sentence(page: str) -> str:
    """Return the first sentence of prose, without links.

    >>> first_sentence("# T\\n\\n```sh\\nknee run\\n```\\n\\nMeasure [a\\nserver](b.md): so.")
    'Measure a server: so.'
    """
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)):
        if paragraph.strip() and not _NO_PROSE.match(paragraph):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.?])\s|:$", text)[0]
    raise SystemExit("a page has no sentence outside of code and tables")


def llms() -> str:
    """Return llms.txt: the name, what it is, and each page with its first sentence."""
    lines = ["# Knee", "", f"> {first_sentence((ROOT / 'README.md').read_text(encoding='utf-8'))}"]
    for heading, pages in nav().items():
        lines += ["", f"## {heading}", ""]
        for title, path in pages:
            lines.append(f"- [{title}]({path}): {first_sentence((ROOT / path).read_text(encoding='utf-8'))}")
    return "\n".join(lines) + "\n"


def stage(out: Path) -> None:
    """Copy README.md, the pages of docs/ and whatever they link to, directly or through another page, below `out`."""
    todo = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    done: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        copy = out / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copy(path, copy)
            continue
        text = path.read_text(encoding="utf-8")
        for link in links(text):
            place = link.partition("#")[0]
            target = (path.parent / place).resolve() if place else path
            if not target.exists() and path.is_relative_to(ROOT / "results"):  # not every picture is committed
                text = re.sub(rf"!?\[[^\]]*\]\({re.escape(link)}\)", "", text)
                continue
            if target.is_dir():
                inside = next((target / name for name in INDEXES if (target / name).exists()), None)
                if inside is None:
                    raise SystemExit(
                        f"{path.relative_to(ROOT)}: {link} is a folder without any of {', '.join(INDEXES)}"
                    )
                text, target = text.replace(f"]({link})", f"]({place.rstrip('/')}/{inside.name})"), inside
            todo.append(target)
        copy.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    LLMS.write_text(llms(), encoding="utf-8")
    shutil.rmtree(SOURCE, ignore_errors=True)
    stage(SOURCE)
