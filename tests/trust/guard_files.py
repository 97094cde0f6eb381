"""Result folders made of links, pipes and folders, each command on them, and the file tree around before and after.

A case is one file name of one command, put there as something else than a plain file. `tried` copies a real result
folder, makes it so, runs the command, and says what does not hold: something outside changed, the command did not end
in seconds, its status is not the one that is due, or it said more than one line. The tests assert each case,
`scripts/trust` prints them.

The commands run in children forked from one process that has imported the packages: a hundred and some starts of
Python would take minutes. A child may give up root first (`USER`), so that permissions judge as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).parents[2]
_IMPORTED = (
    "harness.cli.calibrate", "harness.cli.decide", "harness.cli.predict", "harness.cli.report", "harness.cli.run",
    "harness.cli.sim", "harness.decide.plan.plan", "harness.run.calibrate", "harness.run.experiment",
    "harness.run.campaign", "harness.predict.fitting", "harness.report.page",
    "harness.report.plan", "harness.report.prediction", "harness.report.terminal",
    "matplotlib.backends.backend_agg", "pyarrow.parquet",
)  # fmt: skip
USER = 65534  # who may write nothing but the folder that is given away
_PR_SET_KEEPCAPS, _CAP_DAC_READ_SEARCH, _CAPABILITY_VERSION_3 = 8, 2, 0x20080522  # linux/prctl.h, linux/capability.h
LIMIT_S = 60.0  # for commands that take about one: a pipe that is waited for takes for ever
MEASURED = (0, 3)  # 3: the machine was too busy for the client when the folder was made

LINK, DANGLING, PIPE, FOLDER = "link", "link to nothing", "FIFO", "folder"
HARD, PART, SOCKET = "hard link", "link at NAME.part", "socket"
ALL = "*"
REPORTS = ("summary.json", "curve.png", "report.html", "report.md")
RECORDS = ("requests.parquet", "telemetry.parquet")


class Case(NamedTuple):
    """One name of one command, and what stands there in place of a file."""

    command: str
    file: str  # "": the folder itself; ALL: every name that the command writes, at once
    kind: str
    status: tuple[int, ...]  # those that are due

    @property
    def name(self) -> str:
        where = {"": "the folder itself", ALL: "all that it writes"}.get(self.file, self.file)
        return f"{self.command}, {where}: {self.kind}"


class Command(NamedTuple):
    """How a command is given, the folder that it works on, and the names that it writes and reads there."""

    base: str  # run | spool | map | none: which folder is copied; none: an empty one
    arguments: tuple[str, ...]  # {} is the folder
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    appends: tuple[str, ...] = ()


_LOAD = ("--input-tokens", "16", "--output-tokens", "8", "--levels", "1,2", "--level-seconds", "0.3")
_CELL = "in16-out8"
_TRIES = 8  # until the base run is valid
COMMANDS = {
    "knee report": Command("run", ("report", "{}"), REPORTS, ("manifest.json", *RECORDS)),
    "knee report, of a spool": Command("spool", ("report", "{}"), REPORTS, ("requests.spool",)),
    "knee report, of a map": Command("map", ("report", "{}"), ("map.html", "map.md"), ("map.json",)),
    "knee export": Command(
        "run",
        ("export", "{}", "--to", "csv", "--out", "{}"),
        ("levels.csv", "requests.csv"),
        ("manifest.json", *RECORDS),
    ),
    "knee fit": Command("run", ("fit", "{}"), (), ("manifest.json", *RECORDS)),
    "knee plan": Command("run", ("plan", "{}", "--rps", "5"), (), ("manifest.json", *RECORDS)),
    "knee plan --out": Command("run", ("plan", "{}", "--rps", "5", "--out", "{}"), ("plan.json", "plan.md")),
    "knee run --resume": Command("run", ("run", "--resume", "{}"), ("manifest.json", *RECORDS, *REPORTS)),
    "knee run --resume, of a spool": Command(
        "spool", ("run", "--resume", "{}"), ("manifest.json", *RECORDS, *REPORTS), (), ("requests.spool",)
    ),
    "knee run --resume, of a map": Command(
        "map",
        ("run", "--resume", "{}"),
        (
            "manifest.json",
            "map.json",
            "map.html",
            "map.md",
            *(f"{_CELL}/{name}" for name in ("manifest.json", *REPORTS)),
        ),
    ),
    "knee calibrate model": Command("run", ("calibrate", "model", "{}", "--on", "1"), ("calibration.json",)),
    "knee calibrate model --out": Command(
        "run", ("calibrate", "model", "{}", "--on", "1", "--out", "{}/profile"), ("profile",)
    ),
    "knee calibrate client": Command("none", ("kept", "{}"), ("knee/calibration",)),
    "knee sim --log": Command("none", ("sim", "--port", "0", "--log", "{}/log"), (), (), ("log",)),
}


def cases() -> list[Case]:
    """Every name of every command as each kind of thing, and the folders that are links themselves."""
    found = []
    for name, command in COMMANDS.items():
        refused = (LINK, DANGLING, PIPE, FOLDER)
        found += [Case(name, file, kind, (1,)) for file in command.writes for kind in refused]
        found += [Case(name, file, SOCKET, (1,)) for file in command.writes[:1]]
        # What a new file takes the place of is safe whatever else points to it.
        found += [Case(name, ALL, kind, MEASURED) for kind in (HARD, PART) if command.writes]
        found += [Case(name, file, kind, (1,)) for file in command.appends for kind in (*refused, SOCKET, HARD)]
        found += [Case(name, file, kind, (1,)) for file in command.reads for kind in (PIPE, FOLDER, SOCKET)]
        found += [Case(name, file, kind, (*MEASURED, 1)) for file in command.reads for kind in (LINK, DANGLING)]
    for name in ("knee report", "knee report, of a map", "knee run --resume", "knee run --resume, of a map"):
        found.append(Case(name, "", LINK, (1,)))
    found += [Case("knee calibrate model", "", LINK, (1,))]
    found += [Case("knee run --resume, of a map", _CELL, kind, (1,)) for kind in (LINK, DANGLING, PIPE)]
    found += [Case("knee run --resume, of a map", "in32-out8", kind, (1,)) for kind in (LINK, DANGLING, PIPE)]
    return found


# The process that runs them


class Ended(NamedTuple):
    """How a command ended."""

    status: int | None  # None: it did not, and was killed
    out: str
    err: str


class Runner:
    """One process with everything imported; each command is a fork of it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
        quiet = {"MPLCONFIGDIR": str(place), "XDG_STATE_HOME": str(place / "state"), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.trust.guard_files"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **quiet}, **pipes)

    def __call__(self, *arguments: str, cwd: Path, user: int | None = None, umask: int = 0o022) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err, used = (self._place / name for name in ("out", "err", "used"))
        job = {"arguments": arguments, "cwd": str(cwd), "user": user, "umask": umask}
        job |= {"out": str(out), "err": str(err), "used": str(used)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        status = json.loads(self._process.stdout.readline())
        return Ended(status, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _serve(jobs: IO[str], said: IO[str]) -> None:
    """Run what stands in each line in a child, and say its status."""
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in jobs:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _become(job)
        end = time.monotonic() + LIMIT_S
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        status: int | None = None
        if ended[0]:
            status = os.waitstatus_to_exitcode(ended[1])
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # it leads a group of its own
            os.waitpid(child, 0)
        _import_used(Path(job["used"]))
        said.write(json.dumps(status) + "\n")
        said.flush()


def _import_used(path: Path) -> None:
    """Import what a command imported on its way, for the next one: another user may be unable to."""
    names = set(path.read_text().split()) - {"__main__", *sys.modules} if path.exists() else set()
    for name in sorted(names):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _become(job: dict[str, Any]) -> None:
    """The command, in this process, which ends with its status."""
    from harness import cli

    status = 70
    try:
        os.setpgid(0, 0)
        for number, path in ((1, job["out"]), (2, job["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        used = os.open(job["used"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.umask(job["umask"])
        os.chdir(job["cwd"])
        if job["user"] is not None:
            _give_up_root(job["user"])
        sys.argv = ["knee", *job["arguments"]]
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        if sys.argv[1] == "kept":
            _keep(sys.argv[2])
        else:
            cli.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001  # as the command line does
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(used, "\n".join(sys.modules).encode())
        os._exit(status)


def _give_up_root(user: int) -> None:
    """Become another user, who may write as that user and, where the kernel grants it, read as root.

    The program reads files of its own on its way, and may be in a folder that only root may enter.
    """
    libc, read = ctypes.CDLL(None), 1 << _CAP_DAC_READ_SEARCH
    libc.prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)  # 0: of this process
    libc.capset(header, (ctypes.c_uint32 * 6)(read, read))  # effective and permitted, and none of the others


def _keep(state: str) -> None:
    """What `knee calibrate client` does when it has measured, which would take ten seconds a case; then read again."""
    from datetime import UTC, datetime

    from harness.base.errors import HarnessError
    from harness.data.machines import Ceiling, ClientCalibration
    from harness.run import calibrate

    os.environ["XDG_STATE_HOME"] = state
    most = Ceiling(per_s=1.0, limited_by="client", client_cpu=1.0, server_cpu=0.5, server_processes=1)
    about: dict[str, Any] = calibrate.here()
    made = ClientCalibration(
        format=calibrate.FORMAT,
        created=datetime.now(UTC), **about, transport="socket", timestamp_source="kernel", workers=1,
        load_average=0.0, single=most, bulk=most, requests=most, streams=1, streams_asked=1, timing=(),
        ttft_error_p99_s=None,
    )  # fmt: skip
    try:
        calibrate.load()
        calibrate.save(made)
        assert calibrate.load() == made
    except HarnessError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


# The folders


class Bases(NamedTuple):
    """Real result folders that end before their end: a run, the same as its spool, and a map of two."""

    run: Path
    spool: Path
    map: Path
    none: Path


def bases(place: Path, runner: Runner) -> Bases:
    """Measure them against the simulated endpoint, and leave them as a run that was killed after its last level."""
    from harness.results.spool import Spool

    made = Bases(place / "run", place / "spool", place / "map", place / "none")
    place.mkdir(exist_ok=True)
    made.none.mkdir()
    (place / "map.toml").write_text(
        'name = "map"\n[workload]\noutput_tokens = 8\nseed = 1\n[ramp]\nlevels = [1, 2]\nlevel_seconds = 0.3\n'
        "[sweep]\ninput_tokens = [16, 32]\n"
    )
    for _ in range(_TRIES):
        _knee("run", "--url", "sim:", *_LOAD, "--out", str(made.run))
        if _valid(made.run):
            break
        shutil.rmtree(made.run)
    _knee("run", str(place / "map.toml"), "--url", "sim:", "--out", str(made.map))
    _begun(made.run)
    shutil.copytree(made.run, made.spool)
    Spool(made.spool).close()
    _begun(made.map)
    _begun(made.map / _CELL)
    return made


def _knee(*arguments: str) -> None:
    knee = [sys.executable, "-m", "harness", *arguments]
    done = subprocess.run(knee, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in MEASURED, done.stderr


def _valid(folder: Path) -> bool:
    """Whether the level of 1 is one that `knee calibrate model` can be fitted by: on a busy machine it need not be."""
    levels = json.loads((folder / "summary.json").read_text())["levels"]
    codes = [verdict["level"] for each in levels if each["concurrency"] == 1 for verdict in each["verdicts"]]
    return "invalid" not in codes


def _begun(folder: Path) -> None:
    """The folder as it is before the last thing that is written says that it is complete."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"complete": False}))


def state_file() -> str:
    """The name of this host's calibration."""
    from harness.run import calibrate

    return calibrate.path().name


class Scene(NamedTuple):
    """Where a case happens: the folder that the command is given, and what is around it."""

    folder: Path
    outside: Path


def laid(case: Case, base: Bases, place: Path) -> Scene:
    """The crafted folder of a case."""
    scene = Scene(place / "inside" / "folder", place / "outside")
    scene.outside.mkdir(parents=True)
    (scene.outside / ".profile").write_text("export A=1\n")
    scene.folder.parent.mkdir()
    shutil.copytree(getattr(base, COMMANDS[case.command].base), scene.folder)
    for name in COMMANDS[case.command].writes if case.file == ALL else (case.file,):
        at = scene.folder / name if name else scene.folder
        if name.startswith("knee/"):
            at = scene.folder / "knee" / state_file()
            at.parent.mkdir()
        _put(at, case.kind, scene.outside / f"{len(list(scene.outside.iterdir()))}-{at.name}")
    return scene


def _put(at: Path, kind: str, other: Path) -> None:
    """What the kind says, at a place; what was there stands outside, so that the command can read it by the link."""
    if kind == PART:
        other.write_text("not ours\n")
        at.with_name(f"{at.name}.part").symlink_to(other)
        return
    if kind in (LINK, HARD):
        if at.exists():
            shutil.move(at, other)
        else:
            other.write_text("not ours\n")
        at.symlink_to(other) if kind == LINK else os.link(other, at)
        return
    if at.is_dir():
        shutil.rmtree(at)
    else:
        at.unlink(missing_ok=True)
    if kind == DANGLING:
        at.symlink_to(other)
    elif kind == PIPE:
        os.mkfifo(at)
    elif kind == SOCKET:
        os.mknod(at, stat.S_IFSOCK | 0o600)
    else:
        at.mkdir()


def tree(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name under a place with its mode, mtime and bytes; a folder's mtime tells of what came and went in it."""
    found = {}
    for path in [place, *sorted(place.rglob("*"))]:
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            data = os.readlink(path).encode()
        else:
            data = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        found[str(path.relative_to(place))] = (about.st_mode, about.st_mtime_ns, data)
    return found


def changed(before: dict[str, tuple[int, int, bytes]], after: dict[str, tuple[int, int, bytes]]) -> list[str]:
    """What was added, taken away or changed, a line each."""
    names = sorted({*before, *after})
    return [f"{name} changed outside" for name in names if before.get(name) != after.get(name)]


def tried(case: Case, base: Bases, place: Path, runner: Runner, *, user: int | None = None) -> list[str]:
    """What does not hold in a case; with a user, that one owns the crafted folder, and nothing around it."""
    scene = laid(case, base, place)
    if user is not None:
        _give(scene.folder.parent, user)
    before = tree(scene.outside)
    arguments = [part.replace("{}", str(scene.folder)) for part in COMMANDS[case.command].arguments]
    ended = runner(*arguments, cwd=place, user=user)
    return [*changed(before, tree(scene.outside)), *wrong(ended, case.status), *_left(scene.folder)]


def of_command(command: str, base: Bases, runner: Runner, place: Path) -> list[str]:
    """What does not hold in all cases of a command, each in a folder of its own."""
    found = []
    for number, case in enumerate(case for case in cases() if case.command == command):
        here = place / f"{number}"
        here.mkdir()
        found += [f"{case.name}: {each}" for each in tried(case, base, here, runner)]
        shutil.rmtree(here)
    return found


def _give(place: Path, user: int) -> None:
    for path in [place, *place.rglob("*")]:
        os.chown(path, user, user, follow_symlinks=False)


def _left(folder: Path) -> list[str]:
    """Temporary files that a command has left."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return [f"{path.name} was left" for path in folder.rglob(".knee-*")]


def wrong(ended: Ended, statuses: Sequence[int]) -> list[str]:
    """What is wrong with how a command ended."""
    if ended.status is None:
        return [f"it did not end within {LIMIT_S:g} s"]
    found = [] if ended.status in statuses else [f"exit status {ended.status}: {ended.err.strip()[-300:]}"]
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if "Traceback" in ended.err:
        found.append("a traceback")
    if ended.status == 1 and (len(lines) != 1 or len(lines[0]) > 500):
        found.append(f"{len(lines)} lines say what is wrong")
    return found


# What else is tried


def out_that_is_a_link(base: Bases, place: Path, runner: Runner) -> list[str]:
    """A new run whose folder, or the folder of all results, is a link or a pipe."""
    found = []
    for number, (name, kind) in enumerate(itertools.product(("out", "results"), (LINK, DANGLING, PIPE))):
        here, outside = place / f"{number}" / "in", place / f"{number}" / "outside"
        here.mkdir(parents=True)
        (outside / "empty").mkdir(parents=True)
        if kind == PIPE:
            os.mkfifo(here / name)
        else:
            (here / name).symlink_to(outside / ("empty" if kind == LINK else "none"))
        before = tree(outside)
        given = ("--out", name) if name == "out" else ()
        ended = runner("run", "--url", "sim:", *_LOAD, *given, cwd=here)
        found += [f"{name}, {kind}: {each}" for each in [*changed(before, tree(outside)), *wrong(ended, (1,))]]
    return found


NAMES = {
    "up": "../../x", "absolute": "/tmp/x", "a folder below": "a/b", "hidden": ".bashrc", "nothing": "", "here": ".",
    "NUL": "a\0b", "too long": "x" * 300, "a megabyte": "x" * 1_000_000, "escape": "a\x1b[2Jb", "newline": "a\nb",
    "right to left": "a\u202eb",
}  # fmt: skip


def names_that_leave(base: Bases, place: Path, runner: Runner) -> list[str]:
    """Scenarios whose names are paths, or no names: of a run and of a map, whose folders have them."""
    found = []
    for number, (what, name) in enumerate(NAMES.items()):
        for kind, more in (("run", ""), ("map", "[sweep]\ninput_tokens = [16, 32]\n")):
            here = place / f"{number}-{kind}" / "in" / "deep"
            here.mkdir(parents=True)
            (here / "s.toml").write_text(f"name = {json.dumps(name)}\n[workload]\noutput_tokens = 8\n{more}")
            before = tree(here.parent.parent)
            ended = runner("run", "s.toml", "--url", "http://127.0.0.1:9", cwd=here)
            after = tree(here.parent.parent)
            found += [f"{what}, {kind}: {each}" for each in [*changed(before, after), *wrong(ended, (1,))]]
            if name and len(name) > 3 and name in ended.err:
                found.append(f"{what}, {kind}: the name is repeated")
    return found


def read_only(base: Bases, place: Path, runner: Runner) -> list[str]:
    """Folders that their reader may not write into: each command says so in a line, and reading still reads."""
    due = {
        "knee report": 1, "knee report, of a spool": 1, "knee report, of a map": 1, "knee run --resume": 1,
        "knee run --resume, of a map": 1, "knee calibrate model": 1, "knee fit": 0,
    }  # fmt: skip
    found = _done_once(due, base, place, runner)
    for name, status in due.items():
        command = COMMANDS[name]
        folder = place / name / "folder"
        shutil.copytree(getattr(base, command.base), folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = tree(place / name)
        arguments = [part.replace("{}", str(folder)) for part in command.arguments]
        ended = runner(*arguments, cwd=place, user=USER if os.getuid() == 0 else None)
        found += [f"{name}: {each}" for each in [*changed(before, tree(place / name)), *wrong(ended, (status,))]]
        if status and "Permission denied" not in ended.err:
            found.append(f"{name}: {ended.err[-200:]}")
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
    return found


def _done_once(names: Iterable[str], base: Bases, place: Path, runner: Runner) -> list[str]:
    """Each command on a plain folder: it ends well, and what it imports is there for one that may not read it."""
    found = []
    for name in names:
        command, folder = COMMANDS[name], place / "plain" / "folder"
        if name != "knee sim --log":  # it would go on for ever
            shutil.copytree(getattr(base, command.base), folder)
            arguments = [part.replace("{}", str(folder)) for part in command.arguments]
            found += [f"{name}: {each}" for each in wrong(runner(*arguments, cwd=place), MEASURED)]
            shutil.rmtree(folder)
    return found


def modes(base: Bases, place: Path, runner: Runner) -> list[str]:
    """The umask decides who may read a result; what is kept for this host is its user's alone."""
    found = []
    for umask in (0o027, 0o002, 0o077):
        folder = place / f"{umask:o}" / "folder"
        shutil.copytree(base.spool, folder)
        found += wrong(runner("run", "--resume", str(folder), cwd=place, umask=umask), MEASURED)
        state, plots = place / f"{umask:o}" / "state", place / f"{umask:o}" / "plots"
        found += wrong(runner("kept", str(state), cwd=place, umask=umask), MEASURED)
        found += wrong(runner("report", str(folder), "--figures", str(plots), cwd=place, umask=umask), MEASURED)
        due = dict.fromkeys([*folder.iterdir(), *plots.iterdir()], 438 & ~umask)
        due |= {plots: 0o777 & ~umask, state / "knee" / state_file(): 0o600}
        for path, mode in due.items():
            if (is_now := stat.S_IMODE(path.stat().st_mode)) != mode:
                found.append(f"{path.name} is {is_now:o} by a umask of {umask:o}")
    return found


def another_user(base: Bases, place: Path, runner: Runner) -> list[str]:
    """Links in a folder that is another user's own, who may write nothing around it; without root there is none."""
    if os.getuid() != 0:
        return []
    found = _done_once(COMMANDS, base, place, runner)
    for number, name in enumerate(COMMANDS):
        command = COMMANDS[name]
        for kind, statuses in ((LINK, (1,)), (PART, MEASURED)):
            if kind == PART and name not in ("knee report", "knee run --resume, of a spool"):
                continue
            file = (command.writes or command.appends or command.reads)[0]
            case = Case(name, file, kind, statuses if command.writes or command.appends else (*MEASURED, 1))
            here = place / f"{number}-{kind}"
            here.mkdir()
            found += [f"{case.name}: {each}" for each in tried(case, base, here, runner, user=USER)]
    return found


def interrupted(base: Bases, place: Path, runner: Runner) -> list[str]:
    """Ctrl-C just when `knee report` writes: the status says so, and the half of a file goes away."""
    folder = place / "folder"
    shutil.copytree(base.run, folder)
    command = [sys.executable, "-m", "harness", "report", str(folder)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(10):  # a small file may be whole before it is seen
        with subprocess.Popen(command, cwd=ROOT, **quiet) as process:
            while process.poll() is None and not (seen := _left(folder)):
                time.sleep(0.0005)
            process.send_signal(signal.SIGINT)
        if seen and process.returncode:
            return _left(folder) + ([] if process.returncode == 130 else [f"exit status {process.returncode}"])
    return ["no file was seen while it was written"]


OTHERS: dict[str, Callable[[Bases, Path, Runner], list[str]]] = {
    "a new run's folder is a link": out_that_is_a_link,
    "a scenario's name is a path": names_that_leave,
    "a folder that may only be read": read_only,
    "who may read what is written": modes,
    "Ctrl-C while a file is written": interrupted,
    "as a user who may not write outside": another_user,
}


@contextlib.contextmanager
def ready(place: Path) -> Iterator[tuple[Bases, Runner]]:
    """The folders to copy and the process that runs commands on the copies."""
    place.chmod(0o755)
    runner = Runner(place / "runner")
    try:
        yield bases(place / "bases", runner), runner
    finally:
        runner.close()


if __name__ == "__main__":
    _serve(sys.stdin, sys.stdout)
