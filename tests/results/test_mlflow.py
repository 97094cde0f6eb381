"""A run into MLflow: what its own client reads back from a folder, and what is said where that cannot be."""

from __future__ import annotations

import doctest
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.library.export import export, send
from harness.results.exporters import mlflow
from tests.builders.summaries import MANIFEST, full, stored


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stored(tmp_path / "run")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's own, on the store at tmp_path/store."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        module = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
        return module.MlflowClient(tracking_uri=(tmp_path / "store").as_uri())


@pytest.mark.filterwarnings("ignore")
def test_a_metric_stands_against_load_and_the_answer_beside_it(client: Any, folder: Path, tmp_path: Path) -> None:
    line = send(folder, "mlflow", str(tmp_path / "store"))
    experiment = client.get_experiment_by_name("knee")
    (run,) = client.search_runs([experiment.experiment_id])
    assert line == f"{tmp_path / 'store'}: run {run.info.run_id} in the experiment knee"
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "output_tokens_per_s")
    measured = {level.concurrency: level.output_tokens_per_s.mean for level in full().levels}
    assert {each.step: each.value for each in history} == measured
    curve = full().curve
    assert curve is not None
    assert run.data.metrics["plateau_tokens_per_s"] == curve.plateau_tokens_per_s.value
    assert (run.data.params["model"], run.data.params["server.version"]) == (MANIFEST.model, "0.25.1")
    assert run.data.tags["knee.simulated"] == "false"
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {"manifest.json", "summary.json"}


@pytest.mark.filterwarnings("ignore")
def test_two_runs_stand_in_one_store(client: Any, folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        send(folder, "mlflow", str(tmp_path / "store"))
    assert len(client.search_runs([client.get_experiment_by_name("knee").experiment_id])) == 2


@pytest.mark.filterwarnings("ignore")
def test_no_server_is_one_line_without_the_password(client: Any, folder: Path) -> None:
    with pytest.raises(HarnessError, match="did not take the run") as caught:
        send(folder, "mlflow", "http://user:secret@127.0.0.1:1")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_other_things_is_left_alone(client: Any, folder: Path) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(HarnessError, match="not empty, and no store of MLflow"):
        send(folder, "mlflow", str(folder))
    assert sorted(folder.iterdir()) == before


def test_without_the_package_it_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(HarnessError, match=r"MLflow is not installed; pip install '\.\[mlflow\]' in knee's folder"):
        send(folder, "mlflow", str(tmp_path / "store"))
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ


def test_a_run_in_mlflow_is_sent_and_not_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"knee\.send\(run"):
        export(folder, "mlflow", tmp_path / "out")


def test_what_may_be_secret_in_an_address_is_not_shown() -> None:
    assert mlflow._shown("https://user:secret@host:5000/x?key=1") == "https://host:5000/x"


def test_the_examples_in_the_docstrings_hold() -> None:
    found = doctest.testmod(mlflow)
    assert found.attempted > 1
    assert found.failed == 0
