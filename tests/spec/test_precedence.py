"""Names in an order in which each stands behind those it waits for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.spec.reuse import order


@given(st.permutations(range(8)), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_each_stands_behind_all_that_it_waits_for(names: list[int], pairs: set[tuple[int, int]]) -> None:
    after = {f"n{high}": [f"n{low}" for low, up in sorted(pairs) if up == high and low < high] for high in range(8)}
    found = order([f"n{name}" for name in names], after, path="$")
    assert sorted(found) == sorted(after)
    assert all(found.index(parent) < found.index(name) for name, parents in after.items() for parent in parents)


@pytest.mark.parametrize(
    ("names", "after", "line"),
    [
        ("aa", {}, "f: the name 'a' is given twice at $.n; give each a name of its own"),
        ("ab", {"a": "bc"}, "f: 'a' waits for 'c', which is not there at $.n; known: a, b"),
        ("ab", {"a": "bb"}, "f: 'a' waits for 'b' twice at $.n; name it once"),
        ("a", {"a": "a"}, "f: a → a is a circle at $.n; let one of them wait for none of the others"),
        ("abc", {"a": "b", "b": "a"}, "f: a → b → a is a circle at $.n; let one of them wait for none of the others"),
    ],
)
def test_what_has_no_order_is_refused(names: str, after: dict[str, str], line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        order(list(names), {name: list(parents) for name, parents in after.items()}, path="$.n", place="f")
    assert str(caught.value) == line
