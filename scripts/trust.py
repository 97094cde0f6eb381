"""The tables of `scripts/trust`, in Markdown: what came of all that was made to go wrong."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_consent
import trust_files
import trust_lost
import trust_readers
import trust_secrets
import trust_surface
import trust_table
import trust_wire

from tests.trust import matrix

ROOT = Path(__file__).parent.parent
FAULTS = ("fault", "in flight", "record", "verdict", "exit status", "the others' TTFT error p99, ms", "holds")
WHEEL = ("what", "outcome", "holds")
LEFT = "manifest.json summary.json requests.parquet telemetry.parquet report.html report.md curve.png".split()
FULL_S = 30.0  # that the server is gone for


def faults(*, full: bool) -> Iterator[trust_table.Row]:
    """Yield the fault matrix."""
    chosen = matrix.EVERYTHING
    if full:
        chosen = chosen._replace(gone=[*chosen.gone, *((in_flight, FULL_S) for in_flight, _ in chosen.gone)])
    with tempfile.TemporaryDirectory() as folder:
        for line in matrix.measured(chosen, Path(folder)):
            error = "–" if line.others_error_s is None else f"{line.others_error_s * 1e3:.3f}"
            holds = "; ".join(line.problems) or "yes"
            yield line.fault, str(line.in_flight), line.record, line.verdict, str(line.status), error, holds


def fuzzed(inputs: int) -> trust_table.Row:
    """Return what the parsers made of hostile bytes."""
    command = [str(ROOT / "scripts" / "fuzz"), "--inputs", str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()
    return f"{inputs:,} hostile inputs", output[0], "yes" if done.returncode == 0 else "; ".join(output)


def demo(knee: str) -> trust_table.Row:
    """Return the demo, run by an installed wheel, away from the sources."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        command = [knee, "run", str(ROOT / "scenarios" / "demo.toml"), "--url", "sim:", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        wrong = [f"it left no {name}" for name in LEFT if not (out / name).is_file() or not (out / name).stat().st_size]
        if done.returncode not in (0, 3) or wrong:  # 3: this machine was too busy for the client
            wrong.append(done.stderr[-300:])
            return "demo from the built wheel", f"exit status {done.returncode}", "; ".join(wrong)
        summary = json.loads((out / "summary.json").read_text())
    if not (summary["simulated"] and summary["complete"]):
        wrong.append("not simulated and complete")
    if summary["knee_concurrency"] is None or not summary["curve"]["plateau_reached"]:
        wrong.append("no knee")
    if any(level["errors"] for level in summary["levels"]):
        wrong.append("requests failed")
    knee_at = summary["knee_concurrency"]
    output = f"exit status {done.returncode}, {len(summary['levels'])} levels, knee at {knee_at and round(knee_at, 1)}"
    return "demo from the built wheel", output, "; ".join(wrong) or "yes"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Make it go wrong, and print what came of it.")
    parser.add_argument("--demo", metavar="KNEE", help="the command of an installed wheel")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of the fuzzing (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help=f"a server that is gone for {FULL_S:g} s too")
    parser.add_argument("--faults-only", action="store_true", help="the fault matrix and no more")
    parser.add_argument("--demo-only", action="store_true", help="that demo and no more")
    options = parser.parse_args(arguments)
    # Whatever a shell starts behind `&` ignores Ctrl-C, and so would all that is started and interrupted here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.demo_only and not options.demo:
        parser.error("--demo-only needs --demo KNEE")
    if options.demo_only:
        return 0 if trust_table.show("The wheel", WHEEL, [demo(options.demo)]) else 1
    good = [trust_table.show("Faults", FAULTS, faults(full=options.full))]
    if not options.faults_only:
        parts = trust_lost, trust_secrets, trust_consent, trust_wire, trust_files, trust_readers, trust_surface
        good += [trust_table.show(part.TITLE, part.HEADER, part.rows()) for part in parts]
        rest = [fuzzed(options.inputs), *([demo(options.demo)] if options.demo else [])]
        good.append(trust_table.show("Fuzzing and the wheel", WHEEL, rest))
    print("\nevery row holds" if all(good) else "\nNOT every row holds")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
