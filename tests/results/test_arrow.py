"""Arrow arrays without pandas are those that pyarrow makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.results import columns


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", []),
        ("string", ["", "text", "größer", "\0"]),
        ("string", [None, "a", "", None]),
        ("float64", []),
        ("float64", [0.0, -0.0, float("inf"), 1e-300]),
        ("float64", [None, -0.0, None, *[1.5] * 9]),
        ("int32", [None]),
        ("int32", [2**31 - 1, -(2**31), 0]),
        ("int64", [2**62, None]),
        ("int64", np.arange(20)),
        ("int32", np.array([0, 1], dtype=np.int32)),
    ],
)
def test_an_array_is_the_one_that_pyarrow_makes(kind: str, values: Any) -> None:
    made = columns.array(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, type=kind))


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        columns.array([2**31], "int32")
