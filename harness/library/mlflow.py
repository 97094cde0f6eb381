"""A run into MLflow: at a tracking server, or in a folder that MLflow keeps its runs in.

It stands in the experiment that MLFLOW_EXPERIMENT_NAME names, by default "knee". The package of the extra `mlflow`
suffices, which has neither server nor database; `mlflow ui --backend-store-uri DIR` of the whole one shows the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.base import files
from harness.base.errors import HarnessError
from harness.results.exports.mlflow import Logged

_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_ELSEWHERE = "choose another --out"
_ONCE = 1_000  # metrics that one request may have
_SETTINGS: Mapping[str, str] = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder is what was asked for
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # by default minutes pass before a server is said to be away
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


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
    """Parameters, metrics and files; what is cut off half-way is marked as failed."""
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
    """MLflow's name of the store: an address as it is, and a folder, which is made, by its path.

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
    """The address without what may be a secret.

    >>> _shown("https://user:secret@host:5000/x?key=1"), _shown("results/mlflow")
    ('https://host:5000/x', 'results/mlflow')
    """
    if "://" not in out:
        return out
    parts = urlsplit(out)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """MLflow's settings by its variables, those that the environment leaves open; afterwards as before."""
    added = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
