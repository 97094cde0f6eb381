"""A copy of a result folder at another place, `--copy-to URL`: whatever fsspec writes to, like s3:// or sftp://.

The local folder stays the record of the run. What has changed in it is copied by a thread after each level, and once
more at the end. A copy that fails is a remark: the next one copies what it lacks.
"""

from __future__ import annotations

import contextlib
import ftplib
import os
import threading
from functools import partial
from pathlib import Path

from harness.base.errors import HarnessError
from harness.results.folder import MANIFEST
from harness.results.levelmap import MAP

_FLAG = "--copy-to"
_PART = ".part"  # ending of a file that is being written
_RESULTS = (MANIFEST, MAP, "tune.json")  # a folder with one of these is a result
_MISSING = (FileNotFoundError, ftplib.error_perm)  # what is raised if a folder is not there
_PATIENCE_S = 60.0  # in which at least one file of the last copy is finished


class Copy:
    """A folder elsewhere that follows a result folder: `follow` as levels end, `finish` at the end.

    Raise HarnessError if nothing can be written there, if another result is, unless the run is `resumed`, or if the
    place lies in the result folder `of`, as far as that is known.
    """

    def __init__(self, url: str, *, resumed: bool, of: str | None = None) -> None:
        from fsspec.core import url_to_fs

        before, slashes, authority = url.rpartition("://")
        if ":" in authority.partition("/")[0].rpartition("@")[0]:  # nothing has shown the URL yet
            kind = before.rpartition(":")[2] if slashes else "SCHEME"  # also in ftp:me:secret@host, me:secret@host:/a
            way_out = f"export FSSPEC_{kind.upper()}_PASSWORD=…, which fsspec reads"
            raise HarnessError("a password in it would be shown to all", place=_FLAG, way_out=way_out)
        scheme, colon, rest = url.partition(":")
        if colon and "/" not in scheme and not rest.startswith(("//", ":")):
            raise HarnessError("no URL", place=f"{_FLAG} {url}", way_out="write it like s3://BUCKET/RUN")
        try:
            self._files, found = url_to_fs(url)
            self._place = str(found).rstrip("/")
            if of is not None:
                self._must_lie_outside(Path(of))
            taken = not resumed and any(self._files.exists(f"{self._place}/{name}") for name in _RESULTS)
            self._send(None, f"{self._place}/.knee")  # fails now, not after the load
            with contextlib.suppress(Exception):  # a key may write and not delete
                self._files.rm_file(f"{self._place}/.knee")
        except HarnessError as error:
            raise HarnessError(error.fact, place=f"{_FLAG} {url}", way_out="choose another place") from None
        except ImportError as error:  # it says what to install
            raise HarnessError(_words(error), place=f"{_FLAG} {url}", way_out="or leave it out") from None
        except Exception as error:  # noqa: BLE001  # every file system raises its own
            way_out = "give a place that can be written"
            raise HarnessError(_words(error), place=f"{_FLAG} {url}", way_out=way_out) from None
        if taken:
            raise HarnessError("a result is there", place=f"{_FLAG} {url}", way_out="choose another place")
        self.url = url
        self._failure = ""  # failure of the last copy; "" if it was made
        self._sent: dict[str, tuple[int, int]] = {}  # sizes and times of the files as they were copied
        self._folder: Path | None = None
        self._thread = threading.Thread()
        self._count = 0  # number of files that were sent

    def follow(self, folder: Path) -> str:
        """Begin a copy in the background, unless the one before still runs; return a remark where the last failed."""
        self._folder = folder
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._update, args=(folder,), daemon=True)
            self._thread.start()
        return self._failure and f"note: the copy to {self.url} failed and is tried again: {self._failure}"

    def finish(self) -> str:
        """Copy what is lacking, once nothing is measured any more; return what came of it, "" if there is no result.

        A copy that finishes no file for a while is given up: it must not keep the run from ending.
        """
        if self._folder is None:
            return ""
        self._thread = threading.Thread(target=self._update, args=(self._folder, self._thread), daemon=True)
        self._thread.start()
        count = -1
        while self._thread.is_alive() and count != self._count:
            count = self._count
            self._thread.join(_PATIENCE_S)
        stuck = f"no file was finished in {_PATIENCE_S:g} s" if self._thread.is_alive() else ""
        if failure := stuck or self._failure:
            return f"note: the copy at {self.url} is not whole: {failure}; {self._folder} has all of it"
        return f"copied to {self.url}"

    def _update(self, folder: Path, after: threading.Thread | None = None) -> None:
        """Copy the files of `folder` that have changed and delete copies of files that are gone.

        Waits first for the copy `after` to end. A failure raises nothing: its words are kept, to be shown.
        """
        if after is not None and after.is_alive():
            after.join()
        try:
            self._must_lie_outside(folder)
            copies = {}
            for path in folder.rglob("*"):
                if path.suffix != _PART and path.is_file() and not path.is_symlink():
                    about = path.stat()
                    copies[str(path.relative_to(folder))] = about.st_size, about.st_mtime_ns
            for name, state in sorted(copies.items()):
                if self._sent.get(name) != state and self._send(folder / name, f"{self._place}/{name}"):
                    self._sent[name] = state
                    self._count += 1
            for name in sorted(self._sent.keys() - copies.keys()):
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._place}/{name}")
                del self._sent[name]
            self._failure = ""
        except Exception as error:  # noqa: BLE001  # every file system raises its own, and none ends the run
            self._failure = _words(error)

    def _send(self, path: Path | None, target: str) -> bool:
        """Copy a file, or try the place with a small one (None); return whether the file was still there.

        A folder is made only where it is missing: to make one may be to make a bucket.
        """
        write = partial(self._files.pipe_file, target, b"\n") if path is None else partial(self._put, path, target)
        try:
            write()
        except _MISSING:
            if path is not None and not path.exists():
                return False  # the run has just ended, and its last copy has what the file became
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            write()
        return True

    def _put(self, path: Path, target: str) -> None:
        """Write the file to its target; on a disk, replace the target at once, so that nobody reads half of a file."""
        if not self._is_local():
            self._files.put_file(str(path), target)
            return
        self._files.put_file(str(path), target + _PART)
        os.replace(target + _PART, target)

    def _is_local(self) -> bool:
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self._files, LocalFileSystem)

    def _must_lie_outside(self, folder: Path) -> None:
        """Raise HarnessError if the place is the folder or lies in it: a copy would copy itself."""
        if self._is_local() and Path(self._place).resolve().is_relative_to(folder.resolve()):
            raise HarnessError("it lies in the result folder")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
