"""The one place that writes: links are refused, what is cut off leaves nothing, and no other module writes a file."""

from __future__ import annotations

import ast
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base import files
from harness.base.errors import HarnessError
from tests.test_rooms import modules


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


# Whole files


def test_a_file_is_replaced_and_has_the_users_umask_or_is_private(tmp_path: Path) -> None:
    files.write(tmp_path / "a", "ü")
    assert (tmp_path / "a").read_bytes() == "ü".encode()
    for umask, then in ((0o022, 0o644), (0o002, 0o664), (0o077, 0o600)):
        os.umask(umask)
        files.write(tmp_path / "a", b"later")
        assert mode(tmp_path / "a") == then
        files.write(tmp_path / "b", b"", private=True)
        assert mode(tmp_path / "b") == 0o600
        files.make_folder(tmp_path / f"{umask}" / "folder")
        assert mode(tmp_path / f"{umask}" / "folder") == 0o777 & ~umask
        os.close(files.appending(tmp_path / f"{umask}" / "spool", new=True))
        assert mode(tmp_path / f"{umask}" / "spool") == then


def test_a_hard_link_keeps_what_it_had(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", tmp_path / "report.md")
    files.write(tmp_path / "report.md", "new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "report.md").read_text() == "new"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError, ValueError])
def test_what_is_cut_off_leaves_the_old_file_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def cut_off() -> None:
        with files.replacing(tmp_path / "a") as file:
            file.write(b"half")
            file.flush()
            assert len(list(tmp_path.iterdir())) == 2
            raise error

    with pytest.raises((error, HarnessError)):
        cut_off()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_the_name_of_the_new_file_is_another_each_time_and_cannot_be_guessed(tmp_path: Path) -> None:
    seen = set()
    for _ in range(20):
        with files.replacing(tmp_path / "a"):
            seen |= {path.name for path in tmp_path.iterdir() if path.name != "a"}
    assert len(seen) == 20
    assert all(len(name) >= 32 for name in seen)


def made(kind: str, at: Path, other: Path) -> None:
    if kind == "link":
        other.write_text("other")
        at.symlink_to(other)
    elif kind == "dangling":
        at.symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(at)
    elif kind == "folder":
        at.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(at))
    elif kind == "hard":
        other.write_text("other")
        os.link(other, at)


KINDS = {
    "link": "is a symbolic link", "dangling": "is a symbolic link", "fifo": "is a FIFO", "folder": "is a folder",
    "socket": "is a socket",
}  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_no_file_is_neither_replaced_nor_appended_to(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    (tmp_path / "in").mkdir()
    at, other = tmp_path / "in" / "a", tmp_path / "other"
    made(kind, at, other)
    before = other.exists() and other.read_text()
    for change in (
        lambda: files.write(at, "new"),
        lambda: files.appending(at, new=True),
        lambda: files.appending(at, new=False),
        lambda: files.must_be_files(at.parent, ["free", "a"]),
    ):
        with pytest.raises(HarnessError, match=rf"in/a: {KINDS[kind]}, and only a file is replaced; remove it"):
            change()
    assert (other.exists() and other.read_text()) == before
    assert [path.name for path in at.parent.iterdir()] == ["a"]


def test_a_folder_that_is_a_link_is_refused_by_everything_that_changes_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("a")
    link = tmp_path / "link"
    link.symlink_to("real")
    for change in (
        lambda: files.write(link / "a", "new"),
        lambda: files.appending(link / "a", new=False),
        lambda: files.make_folder(link),
        lambda: files.must_be_files(link, []),
        lambda: files.remove(link, ["a"]),
        lambda: files.real_folder(link),
    ):
        with pytest.raises(HarnessError, match="link: is a symbolic link, and nothing is written through one"):
            change()
    files.remove_folder(link)
    assert (link / "a").read_text() == "a"
    files.write(files.named(link / "a"), "by the operator's own words")
    assert (tmp_path / "real" / "a").read_text() == "by the operator's own words"


def test_a_file_with_two_names_is_not_appended_to(tmp_path: Path) -> None:
    made("hard", tmp_path / "a", tmp_path / "other")
    with pytest.raises(HarnessError, match="has a second name"):
        files.appending(tmp_path / "a", new=False)
    (tmp_path / "other").unlink()
    fd = files.appending(tmp_path / "a", new=False)
    os.write(fd, b" and more")
    os.close(fd)
    assert (tmp_path / "a").read_text() == "other and more"


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_is_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    with files.replacing(folder / "a") as file:
        folder.rename(tmp_path / "away")
        folder.symlink_to(outside)
        file.write(b"x")
    assert list(outside.iterdir()) == []
    assert (tmp_path / "away" / "a").read_bytes() == b"x"


def test_a_link_that_is_put_there_meanwhile_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    with files.replacing(tmp_path / "a") as file:
        (tmp_path / "a").symlink_to("other")
        file.write(b"x")
    assert (tmp_path / "other").read_text() == "other"
    assert (tmp_path / "a").read_bytes() == b"x"


# Reading


def test_a_pipe_is_not_read_for_nobody_may_ever_write_into_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    found: list[str] = []

    def read() -> None:
        for name in ("fifo", "zero"):
            with pytest.raises(HarnessError) as refused:
                files.read(tmp_path / name)
            found.append(refused.value.fact)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(5.0)
    assert found == ["is a FIFO, not a file", "is a device, not a file"]


# Names


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/../../x", "a\0b"])
def test_a_name_does_not_leave_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="names no file in a folder"):
        files.child(tmp_path, name)


# No other module writes

_CHANGES = {
    "write_text", "write_bytes", "touch", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "to_csv",
    "rename", "renames", "symlink", "symlink_to", "link", "hardlink_to", "mkdir", "makedirs", "mkfifo", "mknod",
    "unlink", "rmdir", "removedirs", "rmtree", "copyfile", "copytree", "truncate", "ftruncate", "chmod", "chown",
}  # fmt: skip
_INTO = {"savefig", "to_parquet", "to_json", "to_pickle", "write_table", "ParquetWriter", "dump"}  # what they are given
_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
_ALLOWED = {
    "harness.results.spool": {"ftruncate"},  # of the file descriptor that files.appending gave
    "harness.sim.connection": {"open"},  # likewise
    "harness.cli.__init__": {"open"},  # of stdout and stderr, by their numbers
}


def writes(module: str, source: str) -> list[str]:
    """Every call by which a module changes a file itself, a line each."""
    tree = ast.parse(source)
    kept = _kept_in_memory_or_passed(tree)
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = (
            function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
        )
        reads = (owner, name) in (("Result", "open"), ("Image", "open"))  # a result folder, and a picture in memory
        if owner == "files" or reads or name in _ALLOWED.get(module, set()):
            continue
        arguments = [*call.args, *(word.value for word in call.keywords)]
        if name in _INTO:
            into = any(isinstance(each, ast.Name) and each.id in kept for each in arguments)
            bad = not into and not (name == "write_table" and len(arguments) == 1)  # by a ParquetWriter
        elif name == "open":
            bad = _opens_to_write(call, owner)
        elif name == "replace":
            bad = owner == "os" or (len(call.args) == 1 and not call.keywords)
        else:
            bad = name in _CHANGES
        if bad:
            found.append(f"{module}:{call.lineno}: {name}")
    return found


_KEPT = ("io.BytesIO", "io.StringIO", "pa.BufferOutputStream", "files.replacing")


def _kept_in_memory_or_passed(tree: ast.AST) -> set[str]:
    """Names of buffers, and of what files.replacing gave."""
    found = set()
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.With):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items]
        elif isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
        for target, value in pairs:
            made = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
            if isinstance(target, ast.Name) and made in _KEPT:
                found.add(target.id)
    return found


def _opens_to_write(call: ast.Call, owner: str) -> bool:
    """Whether an open is one to write; one whose mode cannot be seen counts as one."""
    if owner == "os":
        nothing = bool(call.args) and ast.unparse(call.args[0]) == "os.devnull"
        return not nothing and any(getattr(node, "attr", "") in _FLAGS for node in ast.walk(call))
    builtin = isinstance(call.func, ast.Name)
    arguments = [word.value for word in call.keywords if word.arg == "mode"] or call.args[builtin:][:1]
    if not arguments:
        return False
    value = arguments[0].value if isinstance(arguments[0], ast.Constant) else None
    return not isinstance(value, str) or bool(set(value) & set("wax+"))


def test_no_module_but_files_changes_a_file() -> None:
    sources = modules()
    del sources["harness.base.files"]
    del sources["harness.results.copies"]  # by fsspec, to a place that the command line alone can name
    assert len(sources) > 100
    assert [found for name, source in sources.items() for found in writes(name, source)] == []


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'w')",
        "open(path, mode)",
        "path.open('ab', buffering=0)",
        "Path(path).open(mode='r+')",
        "path.write_text('x')",
        "(folder / 'x').write_bytes(b'')",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "os.replace(a, b)",
        "part.replace(path)",
        "figure.savefig(path, format='png')",
        "frame.to_parquet(path)",
        "pq.write_table(table, path)",
        "pq.ParquetWriter(path, schema)",
        "tempfile.mkstemp()",
        "folder.mkdir(parents=True)",
        "path.unlink(missing_ok=True)",
        "shutil.rmtree(path)",
        "json.dump(value, file)",
    ],
)
def test_a_write_elsewhere_would_be_found(source: str) -> None:
    assert writes("harness.report.page", source) != []


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open(newline='')",
        "os.open(os.devnull, os.O_WRONLY)",
        "os.open(folder, os.O_RDONLY | os.O_DIRECTORY)",
        "text.replace('a', 'b')",
        "msgspec.structs.replace(value, x=1)",
        "files.write(path, text)",
        "buffer = io.BytesIO()\nfigure.savefig(buffer)",
        "with files.replacing(path) as part:\n    pq.write_table(table, part)",
    ],
)
def test_what_writes_nothing_is_none(source: str) -> None:
    assert writes("harness.report.page", source) == []


def test_a_folder_in_the_place_of_a_file_to_read_is_not_to_be_removed(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="is a folder, not a file; give a file"):
        files.read(tmp_path)
