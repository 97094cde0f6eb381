"""`--copy-to`: a result folder that is copied while its run goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.results.copies import Copy
from harness.results.result import Result

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
    monkeypatch.setattr(copy, "_send", lambda path, target: (sent.append(path.name), send(path, target)))
    for name, text in (("requests.spool", "1"), ("requests.spool.0001", "2"), ("requests.spool.0001", "23")):
        (tmp_path / name).write_text(text)
        copy._update(tmp_path)
    assert sent == ["requests.spool", "requests.spool.0001", "requests.spool.0001"]


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


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://a/b", "Protocol not known: nosuch"),
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


def test_a_result_that_is_there_is_not_overwritten_unless_its_run_goes_on(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/runs/a/manifest.json", b"{}")
    with pytest.raises(HarnessError, match="a result is there"):
        Copy("memory://runs/a", resumed=False)
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
