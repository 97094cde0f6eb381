"""A copy of a result folder at another place, `--copy-to URL`: whatever fsspec writes to, like s3:// or sftp://.

The local folder stays the record of the run. What has changed in it is copied by a thread after each level, and once
more at the end. A copy that fails is a remark: the next one copies what it lacks.
"""

from __future__ import annotations

import threading
from pathlib import Path

from harness.base.errors import HarnessError
from harness.results.folder import MANIFEST

_FLAG = "--copy-to"
_PART = ".part"  # of a file that is being written


class Copy:
    """A folder elsewhere that follows a result folder: `follow` as levels end, `finish` at the end.

    HarnessError where nothing can be written there, or where another result is, unless the run is `resumed`.
    """

    def __init__(self, url: str, *, resumed: bool) -> None:
        from fsspec.core import url_to_fs

        scheme, colon, rest = url.partition(":")
        if colon and "/" not in scheme and not rest.startswith(("/", ":")):
            raise HarnessError("no URL", place=f"{_FLAG} {url}", way_out="write it like s3://BUCKET/RUN")
        if ":" in rest.partition("@")[0].removeprefix("//") and "@" in rest:
            way_out = f"export FSSPEC_{scheme.upper()}_PASSWORD=…, which fsspec reads"
            raise HarnessError("a password in it would be shown to all", place=_FLAG, way_out=way_out)
        try:
            self._files, found = url_to_fs(url)
            self._place = str(found).rstrip("/")
            self._files.makedirs(self._place, exist_ok=True)
            taken = not resumed and self._files.exists(f"{self._place}/{MANIFEST}")
            self._files.pipe_file(f"{self._place}/.knee", b"\n")  # fails now, not after the load
            self._files.rm_file(f"{self._place}/.knee")
        except ImportError as error:  # it says what to install
            raise HarnessError(_words(error), place=f"{_FLAG} {url}", way_out="or leave it out") from None
        except Exception as error:  # noqa: BLE001  # every file system raises its own
            way_out = "give a place that can be written"
            raise HarnessError(_words(error), place=f"{_FLAG} {url}", way_out=way_out) from None
        if taken:
            raise HarnessError("a result is there", place=f"{_FLAG} {url}", way_out="choose another place")
        self.url = url
        self._failure = ""  # of the last copy, "" where it was made
        self._sent: dict[str, tuple[int, int]] = {}  # sizes and times of the files as they were copied
        self._folder: Path | None = None
        self._thread = threading.Thread()

    def follow(self, folder: Path) -> str:
        """Begin a copy in the background, unless the one before still runs; return a remark where the last failed."""
        self._folder = folder
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._update, args=(folder,), daemon=True)
            self._thread.start()
        return self._failure and f"note: the copy to {self.url} failed and is tried again: {self._failure}"

    def finish(self) -> str:
        """Copy what is lacking, once nothing is measured any more; return what came of it, "" if there is no result."""
        if self._folder is None:
            return ""
        if self._thread.is_alive():
            self._thread.join()
        self._update(self._folder)
        if self._failure:
            return f"note: the copy at {self.url} is not whole: {self._failure}; {self._folder} has all of it"
        return f"copied to {self.url}"

    def _update(self, folder: Path) -> None:
        """Copy the files that have changed, and take away those that are gone."""
        try:
            found = {}
            for path in folder.rglob("*"):
                if path.suffix != _PART and path.is_file() and not path.is_symlink():
                    about = path.stat()
                    found[str(path.relative_to(folder))] = about.st_size, about.st_mtime_ns
            for name, state in sorted(found.items()):
                if self._sent.get(name) != state:
                    self._send(folder / name, f"{self._place}/{name}")
                    self._sent[name] = state
            for name in sorted(self._sent.keys() - found.keys()):
                self._files.rm_file(f"{self._place}/{name}")
                del self._sent[name]
            self._failure = ""
        except Exception as error:  # noqa: BLE001  # every file system raises its own, and none ends the run
            self._failure = _words(error)

    def _send(self, path: Path, target: str) -> None:
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        try:
            self._files.put_file(str(path), target)
        except FileNotFoundError:
            if path.exists():  # else the run has just ended, and its last copy has what the file became
                raise


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
