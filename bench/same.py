"""Whether two checkouts do the same: both run the same commands, and what they print and write is compared.

Each side is copied first, so a checkout may change meanwhile. A command runs in a folder of its own, with an empty HOME
and the same settings on both sides. Paths, today's date and random names are replaced by placeholders. What
`same_cases.py` lists is the contract: texts are compared as they are, runs against the simulated endpoint by their keys
and types, since their figures differ from run to run.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from same_cases import FILES, PARTS, Case

HERE = Path(__file__).resolve().parent
PATIENCE_S = 300.0  # the slowest command takes some ten seconds
INPUTS = ("results", "scenarios", "tests/data", "docs/workloads.md")
LEFT_OUT = ("results", ".git", ".venv", "tests", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")
STATUS = "status and errors"
WIDTH = 200  # characters of a line of a difference
SHOWN = 10  # of the commands that crash
Artefacts = dict[str, str]  # what a command printed or wrote, by its name


class Side(NamedTuple):
    """A checkout as it is run: a copy of its files and its interpreter."""

    name: str
    tree: Path
    python: Path
    commit: str | None  # None where files differ from it

    def environ(self, home: Path) -> dict[str, str]:
        # One thread each, so that sums have the same order; a font cache of its own, since HOME is empty.
        return {
            "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(self.tree), "COLUMNS": "100",
            "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "LANG": "C.UTF-8", "TZ": "UTC", "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1", "MPLCONFIGDIR": str(self.tree.parent / "fonts"),
        }  # fmt: skip


def git(folder: Path, *words: str) -> str:
    """Return what git prints in a folder, or "" where it fails."""
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def extract(repository: Path, commit: str, into: Path, *paths: str) -> None:
    """Write files of a commit to a folder."""
    have = [path for path in paths if git(repository, "ls-tree", "--name-only", commit, path)]
    archive = ["git", "-C", str(repository), "archive", commit, *have]
    packed = subprocess.run(archive, capture_output=True, check=False)
    if packed.returncode:
        sys.exit(f"error: {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(into, filter="data")


def side(name: str, given: str, place: Path) -> Side:
    """Copy a checkout, or take a commit of this repository."""
    tree = place / name / "tree"
    folder = Path(given)
    if not folder.is_dir():
        named = git(HERE, "rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")
        if not named:
            sys.exit(f"error: {given}: neither a folder nor a commit")
        tree.mkdir(parents=True)
        extract(HERE.parent, named, tree)
        return Side(name, tree, Path(sys.executable), named)
    if not (folder / "harness").is_dir():
        sys.exit(f"error: {given}: no checkout, it has no harness/")

    def ignored(below: str, names: list[str]) -> list[str]:
        return ["__pycache__", *(LEFT_OUT if Path(below) == folder else ())]

    shutil.copytree(folder, tree, ignore=ignored, symlinks=True)
    python = folder.resolve() / ".venv" / "bin" / "python"
    clean = not git(folder, "status", "--porcelain")
    commit = (git(folder, "rev-parse", "HEAD") or None) if clean else None
    return Side(name, tree, python if python.exists() else Path(sys.executable), commit)


class Forks:
    """A process of a side that has imported harness/ and forks for each command."""

    def __init__(self, side: Side, home: Path) -> None:
        self._process = subprocess.Popen(
            [str(side.python), "-P", str(HERE / "same_fork.py")], env=side.environ(home), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def run(self, **command: Any) -> int:
        """Run a command and return its status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline() or self._process.wait() or 1)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


class Runner:
    """Commands of a side, each in a folder of its own that has the inputs in it."""

    def __init__(self, side: Side, inputs: Path) -> None:
        self.side, self.inputs = side, inputs
        self._idle: list[Forks] = []  # one thread takes it, and gives it back

    def close(self) -> None:
        for forks in self._idle:
            forks.close()
        self._idle.clear()

    def printed(self, words: str) -> str:
        """Return what `knee` prints, for those who look for further commands in it."""
        return self.artefacts(Case(words, words))[f"{words}: stdout"]

    def artefacts(self, case: Case) -> Artefacts:
        """Run a command and return all that is compared of it."""
        with tempfile.TemporaryDirectory(prefix="same-") as name:
            place = Path(name)
            (place / "home").mkdir()
            work = self.work_folder(place / "work", case)
            status = self.forked(place, work, case) if case.forked else self.started(place, work, case)
            out, err = ((place / file).read_text(errors="replace") for file in ("out", "err"))
            found = {STATUS: f"exit status {status}\n{crash(err)}", "stdout": out}
            if case.shapes:  # a busy machine makes a level void, status 3, and that is no behaviour
                err = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", crash(err))
                found = {STATUS: "it ended well" if status in (0, 3) else f"exit status {status}\n{err}"}
            found |= left(work, case)
        found = {key: self.neutral(text, name) for key, text in found.items()}
        return {f"{case.name}: {key}": text for key, text in found.items()}

    def started(self, place: Path, work: Path, case: Case) -> int:
        """Run a command as a process, and return its status."""
        with (place / "in").open("w+") as given, (place / "out").open("w") as out, (place / "err").open("w") as err:
            given.write(case.stdin)
            given.seek(0)
            command, environ = [str(self.side.python), *case.arguments], self.side.environ(place / "home")
            try:
                return subprocess.run(
                    command, cwd=work, env=environ, stdin=given, stdout=out, stderr=err, timeout=PATIENCE_S, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                return -signal.SIGALRM

    def forked(self, place: Path, work: Path, case: Case) -> int:
        """Run a command of knee as a fork, and return its status."""
        (place / "in").write_text(case.stdin)
        forks = self._idle.pop() if self._idle else Forks(self.side, self.inputs.parent)
        status = forks.run(
            words=shlex.split(case.words), cwd=str(work), environ=self.side.environ(place / "home"),
            files=[str(place / name) for name in ("in", "out", "err")], patience_s=PATIENCE_S,
        )  # fmt: skip
        self._idle.append(forks)
        return status

    def work_folder(self, work: Path, case: Case) -> Path:
        """Make the folder of a command: links to the inputs, and copies of what it writes to."""
        work.mkdir()
        for entry in self.inputs.iterdir():
            (work / entry.name).symlink_to(entry)
        (work / "tree").symlink_to(self.side.tree)
        for target, source in case.copies.items():
            shutil.copytree(self.inputs / source, work / target)
        return work

    def neutral(self, text: str, place: str) -> str:
        """Replace what differs by place and day, not by behaviour."""
        now = datetime.now(UTC)
        for concrete, name in (
            (place, "<place>"),
            (str(self.side.tree), "<tree>"),
            (str(self.side.python), "<python>"),
            (str(self.side.python.parents[2]), "<checkout>"),
            (now.strftime("%Y-%m-%d"), "<today>"),
            (now.strftime("%Y%m%d"), "<today>"),
        ):
            text = text.replace(concrete, name)
        return re.sub(r"\b[0-9a-f]{32}\b", "<id>", text)


def crash(err: str) -> str:
    """Return what a command wrote to stderr; of a traceback the exception and the lines where it arose."""
    _, found, trace = err.partition("Traceback (most recent call last)")
    if not found:
        return err
    lines = trace.splitlines()
    places = [at for at, line in enumerate(lines) if line.startswith('  File "')]
    return "crash: " + "\n".join([lines[-1], *lines[places[-1] : -1][:3]] if places else lines)


def left(work: Path, case: Case) -> Artefacts:
    """Return the files that a command left, by their names without random ids."""
    found = {}
    for pattern in case.files:
        for path in sorted(work.glob(pattern)):
            if path.is_file():
                name = re.sub(r"\b(?:[0-9a-f]{32}|\d{18})\b", "<id>", str(path.relative_to(work)))
                found[name] = shape(path) if case.shapes else content(path)
    if case.shapes:
        found["files"] = "\n".join(sorted(str(path.relative_to(work)) for path in (work / "out").rglob("*")))
    return found


def content(path: Path) -> str:
    """Return a file's text, or the digest of one that is none."""
    raw = path.read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"sha256 {hashlib.sha256(raw).hexdigest()}, {len(raw)} bytes"


def shape(path: Path) -> str:
    """Return the keys and types of a JSON file, or the columns of a Parquet file."""
    if path.suffix == ".parquet":
        return "\n".join(f"{field.name}: {field.type}" for field in pq.read_schema(path))
    if path.suffix == ".json":
        value = json.loads(path.read_text())
        if path.name.endswith(".schema.json"):
            value = resolved(value, value.get("$defs", {}))
        return "\n".join(sorted(set(structure(value, ""))))
    return content(path)


def resolved(schema: Any, definitions: dict[str, Any], seen: tuple[str, ...] = ()) -> Any:
    """Return a schema without the names and descriptions of classes, which are the code's own affair."""
    if isinstance(schema, list):
        return [resolved(each, definitions, seen) for each in schema]
    if not isinstance(schema, dict):
        return str(schema)
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name:
        return "recursive" if name in seen else resolved(definitions[name], definitions, (*seen, name))
    hidden = ("$defs", "title", "description") if isinstance(schema.get("title"), str | None) else ("$defs",)
    return {key: resolved(value, definitions, seen) for key, value in schema.items() if key not in hidden}


def structure(value: Any, path: str) -> Iterator[str]:
    """Yield a line for each value of a tree: its path and type, and the value itself where the seed decides it."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from structure(inner, f"{path}.{'*' if path.endswith(OPEN) else key}")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from structure(inner, f"{path}[]")
    elif path.startswith(KEPT) and ".realised" not in path:
        yield f"{path}: {json.dumps(value)}"
    else:
        yield f"{path}: {kind(value)}"


OPEN = (".factors", ".errors_by_type", ".sent")  # whose keys are of the run, not of the format
# What the seed and the options decide, of runs that are never alike in their figures; and all of a schema.
KEPT = (
    ".scenario.", ".workload.", ".scenario_digest", ".prediction.caps.", ".prediction.assumptions.", ".url", ".model",
    ".api", ".properties.",
)  # fmt: skip


def kind(value: Any) -> str:
    """Return what JSON calls a value's type; what is empty is as good as missing."""
    if value is None or value in ([], {}):
        return "null"
    return {bool: "boolean", int: "number", float: "number", str: "text"}[type(value)]


def without_nulls(one: str, other: str) -> tuple[str, str]:
    """Leave out of two structures what is null in one of them and what lies below it; the keys themselves stay.

    >>> without_nulls(".a: null", ".a.b: number\\n.c: text")
    ('', '.c: text')
    """
    lines = [text.splitlines() for text in (one, other)]
    nulls = [line.removesuffix(": null") for line in {*lines[0], *lines[1]} if line.endswith(": null")]
    below = tuple(path + end for path in nulls for end in (":", ".", "["))
    return tuple("\n".join(line for line in side if not line.startswith(below)) for side in lines)  # type: ignore[return-value]


class Result(NamedTuple):
    """What a part of the contract gave on one side."""

    artefacts: Artefacts
    seconds: float


def run_part(part: str, runner: Runner, jobs: int, cache: Path | None) -> Result:
    """Run all commands of a part, or read what they gave before."""
    if cache and cache.exists():
        return Result(json.loads(cache.read_text()), 0.0)
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        found: Artefacts = {}
        for some in pool.map(runner.artefacts, PARTS[part](runner.printed, runner.inputs)):
            found |= some
    if cache:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(found))
    return Result(found, time.monotonic() - began)


def cached(options: argparse.Namespace, old: Side, results: str, part: str) -> Path | None:
    """Return where a part's artefacts are kept: by all that they depend on."""
    if options.cache is None or old.commit is None:
        return None
    sources = b"".join(name.read_bytes() for name in sorted(HERE.glob("same*")))
    key = hashlib.sha256(sources + f"{results} {old.python} {sys.version}".encode()).hexdigest()[:12]
    return Path(options.cache) / f"{old.commit[:16]}-{key}" / f"{part}.json"


def differences(old: Artefacts, new: Artefacts, lines: int) -> Iterator[tuple[str, str]]:
    """Yield the name of every artefact that differs, with the difference; a failed command's files follow from it."""
    for name in dict.fromkeys([*old, *new]):
        if name not in new or name not in old:
            yield name, f"only {'OLD' if name in old else 'NEW'} has it"
            continue
        one, other = old[name], new[name]
        if one == other:
            continue
        if ": null" in one + other and name.endswith(".json") and one.startswith("."):
            one, other = without_nulls(one, other)
            if one == other:
                continue
        yield name, difference(one, other, lines)


def difference(one: str, other: str, limit: int) -> str:
    """Return the first lines of a difference, JSON laid out."""
    pair = [one, other]
    with contextlib.suppress(ValueError):
        laid = [json.dumps(json.loads(text), indent=1, ensure_ascii=False) for text in pair]
        pair = laid if laid[0] != laid[1] else pair
    before, after = (text.splitlines() for text in pair)
    rows = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    if not rows:
        return "they differ in the ends of lines alone"
    # A long line is shown from where it differs from the one that it replaces.
    shown = [row if len(row) <= WIDTH else excerpt(row, rows) for row in rows[:limit]]
    more = [f"… {len(rows) - limit} more lines"] if len(rows) > limit else []
    return "\n".join(shown + more)


def excerpt(row: str, rows: list[str]) -> str:
    """Return the part of a long line where it leaves the most similar line of the other side."""
    others = [each[1:] for each in rows if each[0] in "+-" and each[0] != row[0]]
    start = max((shared(row[1:], each) for each in others), default=0)
    start = max(0, start - 40)
    return row[0] + ("…" if start else "") + row[1 + start : 1 + start + WIDTH] + "…"


def shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike.

    >>> shared("abcd", "abxd")
    2
    """
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def main() -> int:
    options = parsed()
    total = differing = 0
    crashed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="same-") as name:
        place = Path(name)
        old, new = side("old", options.old, place), side("new", options.new, place)
        results, inputs = options.results or old.commit or "HEAD", place / "inputs"
        repository = Path(options.old) if Path(options.old).is_dir() else HERE.parent
        results = git(repository, "rev-parse", "--verify", "--quiet", f"{results}^{{commit}}") or results
        extract(repository, results, inputs, *INPUTS)
        for file, text in FILES.items():
            (inputs / file).write_text(text)
        for each in (old, new):  # the font cache, which is made with a warning
            fonts = [str(each.python), "-c", "import matplotlib.font_manager"]
            subprocess.run(fonts, env=each.environ(place), check=False, capture_output=True)
        for part in options.only:
            with contextlib.closing(Runner(old, inputs)) as runner:
                before = run_part(part, runner, options.jobs, cached(options, old, results, part))
            with contextlib.closing(Runner(new, inputs)) as runner:
                after = run_part(part, runner, options.jobs, None)
            found = list(differences(before.artefacts, after.artefacts, options.lines))
            for artefact, how in found:
                print(f"== {part}: {artefact}\n{how}\n", flush=True)
            crashed += [key.removesuffix(f": {STATUS}") for key, text in after.artefacts.items() if "\ncrash: " in text]
            names = {*before.artefacts, *after.artefacts}
            total, differing = total + len(names), differing + len(found)
            spent = f"OLD {before.seconds:.0f} s" if before.seconds else "OLD from the cache"
            print(f"{part}: {len(names) - len(found)} of {len(names)} ({spent}, NEW {after.seconds:.0f} s)", flush=True)
    if crashed:
        print(f"NEW crashes in {len(crashed)} commands: {'; '.join(crashed[:SHOWN])}")
    print(f"{total - differing} of {total} artefacts are the same")
    return int(differing > 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a checkout's folder, or a commit of this repository")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--only", metavar="PART,…", default=",".join(PARTS), help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--results", metavar="COMMIT", help="where the input comes from; default: OLD's commit")
    parser.add_argument("--cache", metavar="DIR", help="keep what a clean OLD gives there")
    parser.add_argument("--lines", type=int, default=15, help="of a difference; default 15")
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time; default 2")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
