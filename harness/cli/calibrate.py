"""`knee calibrate`: the limits of the load generator, and the efficiency of a measured server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base import units
from harness.base.terminal import console, json_text
from harness.cli import output

if TYPE_CHECKING:
    from harness.predict.deployment import Deployment
    from harness.predict.fitting import CalibrationPoint
    from harness.predict.model import Model
    from harness.spec.work import MeanLengths

    Measured = tuple[Model, Deployment, MeanLengths, list[CalibrationPoint]]

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

    from harness.report import terminal
    from harness.report.document import Document, Fact, Section
    from harness.run import calibrate as calibrating

    talk = console(stderr=True)
    calibration = calibrating.calibrate(
        calibrating.QUICK if quick else calibrating.THOROUGH, report=lambda what: talk.print(f"measuring {what} …")
    )
    where = calibrating.save(calibration)
    if as_json:
        output.print_json(calibration)
    else:
        rows = [Fact(*row) for row in calibrating.rows(calibration)]
        terminal.show(Document(sections=[Section(facts=rows)]), console(stderr=False))
    talk.print(f"stored in {where}")


@calibrate.command("model")
@click.argument("measured", metavar="DIR", type=click.Path(file_okay=False))
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
def calibrate_model(measured: str, on: str, out: str | None, as_json: bool, **flags: Any) -> None:
    """Fit the prediction to levels of a result folder.

    MBU, MFU and overheads are fitted to the levels of --on, and the fit is tested on all others. `knee predict`, `knee
    run` and `knee sim` take the profile by --calibration.
    """
    from harness.base import files
    from harness.predict import calibration, fitting
    from harness.report import prediction, terminal
    from harness.results.result import run_manifest

    run_manifest(measured)  # an error if it is no run's folder
    path = Path(out) if out else Path(measured) / "calibration.json"
    where = files.named(path) if out else path
    files.must_be_files(where.parent, (where.name,), way_out=_ELSEWHERE)  # before the work that takes time
    values = {name: value for name, value in flags.items() if value is not None}
    if "host_cpus" in values:
        values["host_cpus"] = units.cpus(values["host_cpus"])
    model, deployment, lengths, points = _of_folder(measured, values)
    fitted = fitting.fit(model, deployment, lengths, points, units.levels(on, "--on"), source=measured)
    text = calibration.encode(fitted)
    files.write(where, text, way_out=_ELSEWHERE)
    with output.closed_stdout_ignored():
        if as_json:
            print(json_text(text), end="")
        else:
            before = {"o_step": deployment.o_step, **fitting.assumed(model, deployment)}
            terminal.show(prediction.calibration(fitted, before), console(stderr=False))
    console(stderr=True).print(f"stored in {path}", soft_wrap=True)


def _of_folder(folder: str, values: dict[str, Any]) -> Measured:
    """Return what a result folder says of its server; the options fill it up."""
    import msgspec

    from harness.analysis.summarise import summarise
    from harness.decide import calibration
    from harness.results.result import Result
    from harness.run import prediction

    run = Result.open(folder)
    where = msgspec.structs.replace(calibration.hardware(run), **values)
    model, deployment = calibration.deployed(run, where, prediction.measure)
    summary = summarise(run)
    return model, deployment, calibration.workload(run, summary), calibration.points(summary)
