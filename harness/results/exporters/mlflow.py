"""A run in MLflow, at a tracking server or in a folder: parameters, tags, and a metric for each figure of each level.

Names may hold letters, digits, spaces and `_-./`, a parameter's text 6,000 characters (mlflow.org, MLflow Tracking). A
metric's step is the level's concurrency, so that MLflow draws each figure against load; in an open loop it is the
level's number, and `rate` is a metric of its own. A figure that was not measured is not logged.

The run is of the experiment that MLFLOW_EXPERIMENT_NAME names, by default "knee". The package of the extra `mlflow`
suffices, which has neither server nor database; `mlflow ui --backend-store-uri DIR` of the whole one shows the folder.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.results.exporters import Exporter, Run
from harness.results.exporters.csv import Cell, row
from harness.results.folder import MANIFEST, SUMMARY

_LONGEST = 500  # characters of a parameter
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_ELSEWHERE = "choose another --out"
_ONCE = 1_000  # metrics that one request may have
_SETTINGS: Mapping[str, str] = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder is what was asked for
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # by default minutes pass before a server is said to be away
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Metric(NamedTuple):
    name: str
    value: float
    at_ms: int  # unix time
    step: int


class Logged(msgspec.Struct, frozen=True):
    """What is logged of one run; times are unix ms."""

    name: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: list[Metric]
    began_ms: int
    ended_ms: int


def of_run(summary: Summary, manifest: Manifest) -> Logged:
    """Return the levels in the order of measuring, and then the run's answer; without a run's clock all times are 0."""
    metrics = [each for number, level in enumerate(summary.levels) for each in _of_level(number, level, manifest)]
    windows = [level.window for level in summary.levels] or [(0.0, 0.0)]
    ended = _unix_ms(max(end for _, end in windows), manifest)
    answer: dict[str, Cell] = {"knee_concurrency": summary.knee_concurrency}
    if summary.curve is not None:
        answer |= {
            "plateau_tokens_per_s": summary.curve.plateau_tokens_per_s.value,
            "single_stream_tokens_per_s": summary.curve.single_stream_tokens_per_s.value,
        }
    metrics += _numbers(answer, ended, 0)
    return Logged(
        name=manifest.name or "knee",
        params=_params(manifest),
        tags={
            "knee.state": str(summary.knee.state),
            "knee.simulated": str(summary.simulated).lower(),
            "knee.complete": str(summary.complete).lower(),
            "knee.unit": summary.unit,
            "knee.version": manifest.harness_version or "",
        },
        metrics=metrics,
        began_ms=_unix_ms(min(start for start, _ in windows), manifest),
        ended_ms=ended,
    )


def _of_level(number: int, level: LevelSummary, manifest: Manifest) -> list[Metric]:
    step = number if level.concurrency is None else level.concurrency
    at = _unix_ms(level.window[1], manifest)
    return _numbers(row(level), at, step)


def _numbers(figures: Mapping[str, Cell], at_ms: int, step: int) -> list[Metric]:
    """Return a metric of each that is a finite number."""
    return [
        Metric(name, float(value), at_ms, step)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]


def _unix_ms(at: float, manifest: Manifest) -> int:
    return 0 if manifest.clock is UNSET else round((manifest.clock.unix_origin + at) * 1e3)


def _params(manifest: Manifest) -> dict[str, str]:
    """Return what was measured on what; a server's facts have their names, after `server.`."""
    workload = manifest.workload
    found = {
        "scenario": manifest.name,
        "scenario_digest": manifest.scenario_digest,
        "model": manifest.model,
        "api": manifest.api,
        "url": manifest.url,
        "gpu": manifest.gpu,
        "gpus": manifest.gpus,
        "price_usd_per_gpu_hour": manifest.price,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "stack": UNSET if manifest.stack is UNSET else manifest.stack.name,
        **{f"server.{name}": value for name, value in manifest.server.items()},
    }
    return {_allowed(name): str(value)[:_LONGEST] for name, value in found.items() if value not in (None, "", UNSET)}


def _allowed(name: str) -> str:
    """Return the name with `_` for each character that MLflow refuses.

    >>> _allowed("server.kv cache (GiB)")
    'server.kv cache _GiB_'
    """
    return "".join(each if each.isascii() and (each.isalnum() or each in "_-./ ") else "_" for each in name)[:250]


# ---- into a store ---------------------------------------------------------------------------------------------------


def log(run: Logged, artifacts: Sequence[Path], out: str) -> str:
    """Make a run there, and return where in a line; HarnessError where MLflow is missing or does not take it."""
    with _settings():
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError:
            way_out = "pip install '.[mlflow]' in knee's folder"
            raise HarnessError("MLflow is not installed", place="--to mlflow", way_out=way_out) from None
        place = _shown(out)
        try:
            client = MlflowClient(tracking_uri=_store(out))
            name = os.environ.get(_EXPERIMENT, "knee")
            found = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if found is None else found.experiment_id
            info = client.create_run(experiment, run.began_ms, run.tags, run.name).info
            _fill(client, info.run_id, run, artifacts)
        except (MlflowException, OSError) as error:  # a request that fails is an OSError
            fact = f"MLflow did not take the run ({type(error).__name__})"
            raise HarnessError(fact, place=place, way_out="see that a tracking server runs there") from None
    return f"{place}: run {info.run_id} in the experiment {name}"


def _fill(client: Any, run_id: str, run: Logged, artifacts: Sequence[Path]) -> None:
    """Log parameters, metrics and files; what is cut off half-way is marked as failed."""
    from mlflow.entities import Metric, Param

    try:
        client.log_batch(run_id, params=[Param(name, value) for name, value in run.params.items()])
        for first in range(0, len(run.metrics), _ONCE):
            client.log_batch(run_id, metrics=[Metric(*each) for each in run.metrics[first : first + _ONCE]])
        for path in artifacts:
            client.log_artifact(run_id, str(path))
    except BaseException:
        with contextlib.suppress(Exception):
            client.set_terminated(run_id, "FAILED", run.ended_ms)
        raise
    client.set_terminated(run_id, "FINISHED", run.ended_ms)


def _store(out: str) -> str:
    """Return MLflow's name of the store: an address as it is, and a folder, which is made, by its path.

    HarnessError where the folder holds other things, among which MLflow would put its own.
    """
    if "://" in out:
        return out
    folder = Path(out)
    files.make_folder(folder, way_out=_ELSEWHERE)
    if any(folder.iterdir()) and not any(folder.glob("*/meta.yaml")):
        raise HarnessError("it is not empty, and no store of MLflow", place=out, way_out=_ELSEWHERE)
    return folder.resolve().as_uri()


def _shown(out: str) -> str:
    """Return the address without what may be a secret.

    >>> _shown("https://user:secret@host:5000/x?key=1"), _shown("results/mlflow")
    ('https://host:5000/x', 'results/mlflow')
    """
    if "://" not in out:
        return out
    parts = urlsplit(out)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Set MLflow's variables that the environment leaves open; afterwards they are as before."""
    added = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _text(_: Run) -> str:
    way_out = "give --out DIR, a store of its own, or --out http://HOST:5000"
    raise HarnessError("MLflow has no format for text", place="--to mlflow", way_out=way_out)


def _send(run: Run, out: str) -> str:
    artifacts = [run.path / name for name in (MANIFEST, SUMMARY) if (run.path / name).is_file()]
    return log(of_run(run.summary, run.manifest), artifacts, out)


EXPORTER = Exporter(text=_text, send=_send, title="MLflow")
