"""Which level comes next, and why."""

from harness.analysis.ramp import Held, next_level


def ramp(*rates: float, errors: float = 0.0, levels: list[int] | None = None, most: int = 64) -> tuple[int | None, str]:
    """The next level after doubling levels of these rates; the last one with this share of errors."""
    last = len(rates) - 1
    held = [Held(2**i, None, rate, errors if i == last else 0.0) for i, rate in enumerate(rates)]
    step = next_level(held, levels=levels, max_concurrency=most)
    return step.concurrency, step.reason


def test_given_levels_are_held_in_their_order_and_then_it_ends() -> None:
    assert ramp(levels=[5, 3])[0] == 5
    assert ramp(10.0, levels=[5, 3])[0] == 3
    assert ramp(10.0, 10.0, levels=[5, 3]) == (None, "all given levels are held")


def test_without_levels_it_doubles_up_to_the_highest() -> None:
    assert ramp(1.0, 2.0, 4.0)[0] == 8
    assert ramp(1.0, 2.0, 4.0, most=6)[0] == 6
    assert ramp(1.0, 2.0, 4.0, most=4)[0] is None


def test_one_flat_doubling_goes_on_and_two_end_it() -> None:
    assert ramp(1.0, 2.0, 2.0)[0] == 8
    assert ramp(1.0, 2.0, 2.01, 2.02) == (None, "stopped: throughput rose by less than 5% per doubling, twice")
    assert ramp(1.0, 1.0, 2.0, 2.0)[0] == 16


def test_errors_end_any_ramp() -> None:
    assert ramp(1.0, 2.0, errors=0.02, levels=[1, 2, 4]) == (
        None,
        "stopped: 2.0% of the requests failed at 2 in flight",
    )
    assert ramp(1.0, 2.0, errors=0.01)[0] == 4
