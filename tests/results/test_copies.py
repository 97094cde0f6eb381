"""`--copy-to`: a result folder that is copied while its run goes on."""

from __future__ import annotations

import ftplib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.results import copies
from harness.results.copies import Copy
from harness.results.result import Result
from harness.run import tuned

RUN = ["run", "sim:", "--speed", "20", "--input-tokens", "32", "--output-tokens", "8", "--levels", "1,2",
       "--level-seconds", "1", "--no-plots", "--quiet"]  # fmt: skip


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


def names(files: fsspec.AbstractFileSystem, place: str) -> dict[str, bytes]:
    return {path.removeprefix(place).strip("/"): files.cat_file(path) for path in files.find(place)}


def test_a_copy_follows_the_files_that_come_change_and_go(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    copy = Copy("memory://runs/a", resumed=False)
    (tmp_path / "requests.spool").write_bytes(b"1")
    (tmp_path / ".knee-0.part").write_bytes(b"half of a file")
    (tmp_path / "elsewhere").symlink_to("/etc/hostname")
    copy._update(tmp_path)
    assert names(memory, "/runs/a") == {"requests.spool": b"1"}
    (tmp_path / "requests.spool").write_bytes(b"12")
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "manifest.json").write_bytes(b"{}")
    copy._update(tmp_path)
    assert names(memory, "/runs/a") == {"requests.spool": b"12", "cell/manifest.json": b"{}"}
    (tmp_path / "requests.spool").unlink()
    (tmp_path / "requests.parquet").write_bytes(b"all")
    assert (copy.follow(tmp_path), copy.finish()) == ("", "copied to memory://runs/a")
    assert names(memory, "/runs/a") == {"requests.parquet": b"all", "cell/manifest.json": b"{}"}


def test_a_file_that_has_not_changed_is_not_sent_again(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, sent = Copy("memory://runs/a", resumed=False), list[str]()
    send = copy._send
    monkeypatch.setattr(copy, "_send", lambda path, target: (sent.append(path.name), send(path, target))[1])
    for name, text in (("requests.spool", "1"), ("requests.spool.0001", "2"), ("requests.spool.0001", "23")):
        (tmp_path / name).write_text(text)
        copy._update(tmp_path)
    assert sent == ["requests.spool", "requests.spool.0001", "requests.spool.0001"]


def test_a_copy_on_a_disk_is_never_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, place = tmp_path / "run", tmp_path / "copy"
    folder.mkdir()
    copy = Copy(place.as_uri(), resumed=False)
    (folder / "requests.spool").write_bytes(b"1")
    copy._update(folder)
    (folder / "requests.spool").write_bytes(b"12")

    def killed(_: object, source: str, target: str) -> None:
        Path(target).write_bytes(b"")
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(type(copy._files), "put_file", killed)
        copy._update(folder)
    assert ((place / "requests.spool").read_bytes(), copy._failure) == (b"1", "killed")
    copy.follow(folder)
    assert copy.finish() == f"copied to {place.as_uri()}"
    assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [("requests.spool", b"12")]


def test_a_copy_that_fails_is_a_remark_and_the_next_one_has_what_it_lacked(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy("memory://runs/a", resumed=False)
    (tmp_path / "manifest.json").write_text("{}")

    def broken(*_: object) -> None:
        raise ConnectionResetError("the store\nis away")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "put_file", broken)
        copy._update(tmp_path)
        assert copy.follow(tmp_path).endswith("failed and is tried again: the store is away")
        assert copy.finish().endswith(f"is not whole: the store is away; {tmp_path} has all of it")
    assert copy.finish() == "copied to memory://runs/a"
    assert names(memory, "/runs/a") == {"manifest.json": b"{}"}


def test_a_file_that_goes_while_it_is_copied_does_not_count_as_sent(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, put = Copy("memory://runs/a", resumed=False), type(memory).put_file
    (tmp_path / "requests.spool").write_text("1")
    (tmp_path / "manifest.json").write_text("{}")

    def late(self: fsspec.AbstractFileSystem, source: str, target: str) -> None:
        (tmp_path / "requests.spool").unlink(missing_ok=True)
        put(self, source, target)

    monkeypatch.setattr(type(memory), "put_file", late)
    copy._update(tmp_path)
    assert (copy._failure, list(copy._sent)) == ("", ["manifest.json"])
    memory.rm_file("/runs/a/manifest.json")  # by somebody else
    (tmp_path / "manifest.json").unlink()
    copy.follow(tmp_path)
    assert copy.finish() == "copied to memory://runs/a"


@pytest.mark.parametrize("during", ["a level", "the end"])
def test_a_place_that_hangs_does_not_keep_the_run_from_ending(
    during: str, tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, go_on = Copy("memory://runs/a", resumed=False), threading.Event()
    copy.follow(tmp_path)
    copy._thread.join()
    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setattr(copies, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(type(memory), "put_file", lambda *_: go_on.wait(60))
    if during == "a level":
        copy.follow(tmp_path)
    assert copy.finish().endswith(f"is not whole: no file was finished in 0.05 s; {tmp_path} has all of it")
    go_on.set()
    copy._thread.join()


def test_a_slow_place_has_the_time_it_needs_while_files_are_finished(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copy("memory://runs/a", resumed=False)
    copy.follow(tmp_path)
    for number in range(8):
        (tmp_path / str(number)).write_text("")
    monkeypatch.setattr(copies, "_PATIENCE_S", 0.4)
    monkeypatch.setattr(type(memory), "put_file", lambda *_: time.sleep(0.1))
    assert copy.finish() == "copied to memory://runs/a"


@pytest.mark.parametrize("below", ["", "copy", "link/copy"])
def test_a_place_in_the_result_folder_is_refused(below: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link").symlink_to(folder)
    url = (folder / below).as_uri()
    with pytest.raises(HarnessError, match="it lies in the result folder; choose another place"):
        Copy(url, resumed=False, of=str(folder))
    assert [path.name for path in folder.iterdir()] == ["link"]
    copy = Copy(url, resumed=False)  # the folder of a run without --out is not known yet
    (folder / "summary.json").write_text("{}")
    copy.follow(folder)
    assert copy.finish().endswith(f"is not whole: it lies in the result folder; {folder} has all of it")
    assert list(folder.rglob("summary.json")) == [folder / "summary.json"]
    Copy((tmp_path / "run-2").as_uri(), resumed=False, of=str(folder))


def test_the_command_line_refuses_a_place_in_its_result_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, [*RUN, "--out", str(tmp_path / "run"), "--copy-to", str(tmp_path / "run" / "copy")])
    assert (done.exit_code, "it lies in the result folder" in done.stderr) == (1, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("ftp://me:s3cret@host/a", "FTP"),
        ("ftp://me:s3::cret@host/a", "FTP"),
        ("simplecache::ftp://me:s3cret@host/a", "FTP"),
        ("ftp:me:s3cret@host/a", "SCHEME"),
        ("me:s3cret@host:/a", "SCHEME"),
        ("/tmp/x:y:z@w", ""),
        ("ftp://ftp.host:2121/me@home", ""),
        ("sftp://me@host:22/a", ""),
        ("s3://bucket/key", ""),
    ],
)
def test_a_password_is_looked_for_where_one_can_be(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(_: str) -> None:
        raise OSError("reached")

    monkeypatch.setattr("fsspec.core.url_to_fs", reached)
    with pytest.raises(HarnessError) as caught:
        Copy(url, resumed=False)
    if name:
        assert str(caught.value).endswith(f"a password in it would be shown to all; export FSSPEC_{name}_PASSWORD=…, "
                                          "which fsspec reads")  # fmt: skip
        assert "cret" not in str(caught.value)
    else:
        assert "reached" in str(caught.value)


@pytest.mark.parametrize("missing", [FileNotFoundError("no folder"), ftplib.error_perm("550 no folder")])
def test_a_folder_is_made_only_where_it_is_missing_and_the_probe_may_stay(
    missing: Exception, tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[str]()

    def refused(*_: object) -> None:
        raise PermissionError("not with this key")

    def put(*_: object) -> None:
        if len(made) < 1:
            raise missing

    monkeypatch.setattr(type(memory), "makedirs", lambda _, path, exist_ok: made.append(path))
    monkeypatch.setattr(type(memory), "rm_file", refused)
    copy = Copy("memory://runs/a", resumed=False)
    assert (made, list(names(memory, "/runs/a"))) == ([], [".knee"])
    monkeypatch.setattr(type(memory), "put_file", put)
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "manifest.json").write_text("{}")
    copy._update(tmp_path)
    assert (made, copy._failure) == (["/runs/a/cell"], "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://a/b", "Protocol not known: nosuch"),
        ("s3:/bucket/a", "no URL; write it like s3://BUCKET/RUN"),
        ("s3:bucket/a", "no URL; write it like s3://BUCKET/RUN"),
        ("ftp://me:s3cretword@host/a", "a password in it would be shown to all; export FSSPEC_FTP_PASSWORD=…"),
        ("FILE/a", "give a place that can be written"),
    ],
)
def test_a_place_that_cannot_be_written_is_a_mistake_before_the_run(url: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(cli, [*RUN, "--copy-to", url.replace("FILE", str(tmp_path / "file"))])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: --copy-to")
    assert words in done.stderr
    assert "s3cretword" not in done.stderr


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(HarnessError, match="Install s3fs to access S3"):
        Copy("s3://bucket/a", resumed=False)


@pytest.mark.parametrize("name", ["manifest.json", "map.json", tuned.FILE])
def test_a_result_that_is_there_is_not_overwritten_unless_its_run_goes_on(
    name: str, memory: fsspec.AbstractFileSystem
) -> None:
    memory.pipe_file(f"/runs/a/{name}", b"{}")
    with pytest.raises(HarnessError, match="a result is there"):
        Copy("memory://runs/a", resumed=False)
    assert list(names(memory, "/runs/a")) == [name]
    Copy("memory://runs/a", resumed=True)


def test_the_copy_of_a_run_is_its_folder(tmp_path: Path) -> None:
    folder, place = tmp_path / "run", tmp_path / "copy"
    done = CliRunner().invoke(cli, [*RUN, "--out", str(folder), "--copy-to", place.as_uri()])
    assert (done.exit_code in (0, 3), done.stderr) == (True, "")  # 3: on a busy machine a level may be invalid
    assert sorted(path.name for path in place.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert all((place / path.name).read_bytes() == path.read_bytes() for path in folder.iterdir())


@pytest.mark.slow
def test_the_copy_of_a_run_that_was_killed_has_the_levels_that_had_ended(tmp_path: Path) -> None:
    folder, place = tmp_path / "run", tmp_path / "copy"
    command = [sys.executable, "-m", "harness", *RUN, "--levels", "1,2,3,4,5,6,7,8,9", "--out", str(folder)]
    with subprocess.Popen([*command, "--copy-to", str(place)]) as run:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (place / "requests.spool").exists():
            time.sleep(0.05)
        while time.monotonic() < until and len(ended(place)) < 2:
            time.sleep(0.05)
        run.kill()
    shutil.rmtree(folder)  # the machine is gone
    assert ended(place)[:2] == [1, 2]
    reported = CliRunner().invoke(cli, ["report", str(place), "--no-plots"])
    assert reported.exit_code == 0, reported.output


def ended(place: Path) -> list[int | None]:
    """The concurrencies of the levels that have ended, by the copy."""
    return [level.concurrency for level in Result.open(place).levels if level.end_s is not None]
