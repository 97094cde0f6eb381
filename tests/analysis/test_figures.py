"""A figure is one field: its declaration makes it and shows it, and its name says its unit."""

from __future__ import annotations

import pytest

from harness.data.figures import Figures, Group, RequestFigures, declared, over
from harness.data.levels import ClassSummary, LevelSummary, ReplicaSummary
from harness.data.views import Spread
from harness.decide.check.figures import of_kind
from harness.results.exporters import csv

KINDS = (LevelSummary, ClassSummary, ReplicaSummary)


def test_a_level_has_the_figures_of_its_classes_and_these_those_of_a_replica() -> None:
    shared, of_requests = set(declared(Figures)), set(declared(RequestFigures))
    assert shared < of_requests < set(declared(LevelSummary))
    assert set(declared(ClassSummary)) == of_requests
    assert set(declared(ReplicaSummary)) - shared == {"in_flight_share"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_figure_ends_with_its_unit(kind: type[Figures]) -> None:
    for name, figure in declared(kind).items():
        assert name.endswith(("_per_s", "_per_gpu", "_per_user")) == figure.about.unit.endswith("/s"), name
        assert (name.endswith("_s") and not name.endswith("_per_s")) == (figure.about.unit == "s"), name
        assert name.endswith(("_fraction", "_rate", "_share")) == (figure.about.unit == "1"), name
        assert (figure.kind is Spread) == (figure.about.group in (Group.LATENCY, Group.DELAY)), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_can_be_checked_by_its_name(kind: type[Figures]) -> None:
    paths = {figure.path[0] for figure in of_kind(kind).values()}
    assert set(declared(kind)) <= paths


def test_an_estimate_has_three_columns_and_a_latency_one_for_each_statistic() -> None:
    known = declared(LevelSummary)
    assert list(csv.columns(known["requests_per_s"])) == ["requests_per_s", "requests_per_s_low", "requests_per_s_high"]
    assert list(csv.columns(known["ttft_s"]))[:2] == ["ttft_mean_s", "ttft_p50_s"]
    assert list(csv.columns(known["errors"])) == ["errors"]


def test_a_quotient_without_a_divisor_is_not_known() -> None:
    assert (over(6, 3), over(6, 0), over(6, None), over(None, 3)) == (2, None, None, None)
