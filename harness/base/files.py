"""The one place that changes files: whole ones are replaced, one is appended to, some are taken away.

A result folder may come from others, and so may every name in it. Links there are refused and never followed, so
nothing outside of the folder is written, whatever is in it; pipes, devices and folders in the place of a file are
refused too. A file is written under a random new name, in the folder itself, and takes the place of
the old one in one step: a hard link to it elsewhere keeps what it had.

The folder is opened first and all names are relative to that, so one that is exchanged meanwhile is not followed.
Links on the way to a folder, or to a file, that the operator named are the operator's (`named`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from harness.base.errors import HarnessError

_OURS, _EVERYBODYS = 0o600, 0o666  # modes of new files; the user's umask takes away from both
_PATH = getattr(os, "O_PATH", os.O_RDONLY)  # Linux's, with which a folder need not be readable
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def write(path: Path, data: bytes | str, *, private: bool = False, way_out: str = "") -> None:
    """Replace a whole file in one step; text is UTF-8. As `replacing`."""
    with replacing(path, private=private, way_out=way_out) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def json_text(value: Any) -> str:
    """Return the text of a JSON file as all of them are written here; of plain data or Structs."""
    return json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any, *, private: bool = False, way_out: str = "") -> None:
    """Replace a JSON file in one step, so that a reader never sees half of it. As `replacing`."""
    write(path, json_text(value), private=private, way_out=way_out)


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False, way_out: str = "") -> Iterator[BinaryIO]:
    """Yield a new file that takes the path's place, in one step, when the block has ended well; else it goes away.

    Its mode is the umask's, or 0600 if it is private. Raise HarnessError if the path or its folder is a link, if
    something else than a file is there, or if it cannot be written; `way_out` is for the last.
    """
    part = f".knee-{os.urandom(16).hex()}.part"
    with _failing(path, way_out), _folder(path.parent) as folder:
        _must_be_a_file(path, folder)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(part, flags, _OURS if private else _EVERYBODYS, dir_fd=folder), "wb") as file:
                yield file
            # A link that was put there after the check is replaced, not followed.
            os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise


def appending(path: Path, *, new: bool, way_out: str = "") -> int:
    """Return a file descriptor to append by: of a file that is made now, or of one that is there.

    Raise HarnessError if a link or something else than a file is there, or if the file has another name too: what
    is appended would be written there as well.
    """
    with _failing(path, way_out), _folder(path.parent) as folder:
        _must_be_a_file(path, folder)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK  # to open a FIFO must not wait for its reader
        fd = os.open(path.name, flags | (os.O_CREAT | os.O_EXCL if new else 0), _EVERYBODYS, dir_fd=folder)
        about = os.fstat(fd)
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
            return fd
        os.close(fd)
        fact = "has a second name (a hard link), which would be written too"
        raise HarnessError(fact, place=str(path), way_out="copy it to a file of its own")


def read(path: Path) -> bytes:
    """Return all of a file; raise OSError if it cannot be read, HarnessError if it is a pipe, a device or a folder."""
    with opened(path) as file:
        return file.read()


def opened(path: Path) -> BinaryIO:
    """Return a file to read; as `read`. To open a FIFO does not wait for its writer."""
    if what := _other_than_file(os.stat(path).st_mode):
        raise HarnessError(f"is {what}, not a file", place=str(path), way_out="give a file")
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")


def make_new_folder(path: Path, *, way_out: str) -> bool:
    """Make a folder whose parent is there; return False if one has that name. Of two at once one makes it."""
    with _failing(path, way_out):
        try:
            path.mkdir()
        except FileExistsError:
            return False
    return True


def make_folder(path: Path, *, way_out: str = "") -> None:
    """Make a folder and its parents unless they exist; raise HarnessError if that fails, or for a link."""
    with _failing(path, way_out):
        if not path.is_symlink():
            path.mkdir(parents=True, exist_ok=True)
        with _folder(path):
            pass


def must_be_files(folder: Path, names: Iterable[str], *, way_out: str = "") -> None:
    """Raise HarnessError unless each name in the folder is a plain file or free; called before anything is begun."""
    with _failing(folder, way_out), _folder(folder) as fd:
        for name in names:
            _must_be_a_file(folder / name, fd)


def remove(folder: Path, names: Iterable[str]) -> None:
    """Take files away from a folder; those that are not there need not be."""
    with _failing(folder), _folder(folder) as fd:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)


def remove_folder(path: Path) -> None:
    """Take an empty folder away; one that is not empty, or is a link, stays."""
    with contextlib.suppress(OSError):
        path.rmdir()


def real_folder(path: Path, *, way_out: str = "") -> int:
    """Return a file descriptor of a folder; raise HarnessError if there is none, or a link in its place."""
    with _failing(path, way_out), _folder(path) as fd:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)


def named(path: Path) -> Path:
    """Return a file that the operator names: links on the way to it are followed, one in its own place is not."""
    return path.parent.resolve() / path.name


def child(folder: Path, name: str) -> Path:
    """Return what lies in a folder by that name; raise HarnessError if the name would leave the folder.

    >>> str(child(Path("results"), "chat-1"))
    'results/chat-1'
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise HarnessError(f"{name!r} names no file in a folder", place=str(folder), way_out="choose another name")
    return folder / name


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Yield the folder itself, opened: a link in its place is refused."""
    if path.is_symlink():
        fact = "is a symbolic link, and nothing is written through one"
        raise HarnessError(fact, place=str(path), way_out="give the folder itself")
    fd = os.open(path, _PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def _must_be_a_file(path: Path, folder: int) -> None:
    """Refuse what is there by the path's name and is no plain file."""
    try:
        mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if what := _other_than_file(mode):
        raise HarnessError(f"is {what}, and only a file is replaced", place=str(path), way_out="remove it")


def _other_than_file(mode: int) -> str | None:
    """Return what it is in words; None for a plain file."""
    if stat.S_ISREG(mode):
        return None
    return next((name for is_one, name in _KINDS if is_one(mode)), "something unknown")


@contextlib.contextmanager
def _failing(path: Path, way_out: str = "") -> Iterator[None]:
    """Raise what cannot be written in the block as the operator's mistake."""
    try:
        yield
    except OSError as error:
        if not way_out and error.errno in _NO_ROOM:
            way_out = "make room"
        elif not way_out and error.errno in _NOT_ALLOWED:
            way_out = "copy the folder to where you may write"
        fact = f"cannot be written: {error.strerror or error}"
        raise HarnessError(fact, place=str(path), way_out=way_out or "choose another place") from None
