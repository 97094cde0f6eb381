"""`knee calibrate`: the limits of the load generator, and the efficiency of a measured server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness import units
from harness.cli import output
from harness.terminal import console, json_text

_ELSEWHERE = "give a file by --out"


@click.group()
def calibrate() -> None:
    """Measure the load generator, or fit the prediction to a server."""


@calibrate.command("client")
@click.option("--quick", is_flag=True, help="Measure for about 10 seconds, not 35.")
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON on stdout.")
def calibrate_client(quick: bool, as_json: bool) -> None:
    """Measure the load generator against the reference endpoint.

    The result is stored for this host.
    """
    import msgspec

    from harness.experiment import calibrate as calibrating
    from harness.report import terminal
    from harness.report.document import Document, Fact, Section

    talk = console(stderr=True)
    found = calibrating.calibrate(
        calibrating.QUICK if quick else calibrating.THOROUGH, report=lambda what: talk.print(f"measuring {what} …")
    )
    where = calibrating.save(found)
    if as_json:
        output.print_json(msgspec.json.encode(found).decode())
    else:
        rows = [Fact(*row) for row in calibrating.rows(found)]
        terminal.show(Document(sections=[Section(facts=rows)]), console(stderr=False))
    talk.print(f"stored in {where}")


@calibrate.command("model")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option(
    "--on", metavar="1,16", default="1,16", show_default=True, help="Levels to fit to; the others test the fit."
)
@click.option("--out", metavar="FILE", help="The profile to write; default DIR/calibration.json.")
@click.option("--model-config", "--model", metavar="PATH|NAME", help="Model, if the folder does not name it.")
@click.option("--gpu", metavar="KEY|host", help="GPU, if the folder does not name it.")
@click.option("--host-cpus", metavar="0,1", help="Cores of this machine that serve, with --gpu host.")
@click.option("--gpus", type=int, help="How many GPUs, if the folder does not say it.")
@click.option("--tp", type=int, help="GPUs that share every matrix, if the folder does not say it.")
@click.option("--dtype", help="Weights as they were loaded, if the folder does not say it.")
@click.option("--kv-dtype", help="KV cache of the server, if the folder does not say it.")
@click.option("--max-num-seqs", type=int, help="Limit of running requests, if the folder does not say it.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile on stdout.")
def calibrate_model(folder: str, on: str, out: str | None, as_json: bool, **flags: Any) -> None:
    """Fit the prediction to levels of a result folder.

    MBU, MFU and overheads are fitted to the levels of --on, and the fit is tested on all others. `knee predict`,
    `knee run` and `knee sim` take the profile by --calibration.
    """
    import msgspec

    from harness import files
    from harness.analysis.summarise import summarise
    from harness.decide import measured
    from harness.experiment import hardware
    from harness.predict import tune
    from harness.report import prediction, terminal
    from harness.results.result import Result

    run = Result.open(folder)
    path = Path(out) if out else run.path / "calibration.json"
    where = files.named(path) if out else path
    files.must_be_files(where.parent, (where.name,), way_out=_ELSEWHERE)  # before the work that takes time
    values = {name: value for name, value in flags.items() if value is not None}
    if "host_cpus" in values:
        values["host_cpus"] = units.cpus(values["host_cpus"])
    where_served = msgspec.structs.replace(measured.hardware(run), **values)
    model, deployment = measured.deployed(run, where_served, hardware.measure)
    summary = summarise(run)
    found = tune.tune(
        model,
        deployment,
        measured.workload(run, summary),
        measured.points(summary),
        units.levels(on, "--on"),
        source=str(run.path),
    )
    text = tune.encode(found)
    files.write(where, text, way_out=_ELSEWHERE)
    with output.closed_stdout_ignored():
        if as_json:
            print(json_text(text), end="")
        else:
            before = {"o_step": deployment.o_step, **tune.assumed(model, deployment)}
            terminal.show(prediction.calibration(found, before), console(stderr=False))
    console(stderr=True).print(f"stored in {path}", soft_wrap=True)
