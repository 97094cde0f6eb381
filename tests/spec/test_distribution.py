"""Distributions of lengths: what each law is, what is drawn from it, and how it is written."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.spec.distribution import Distribution, Empirical, Fixed, Lognormal, Normal, Range, observed, parse
from tests.builders.fit import kolmogorov_smirnov

TEXTS = (
    "512", "512±64", "1±0.5", "100±200", "1000±300 in 900..1100", "100..900", "1..1", "lognormal(512,300)",
    "lognormal(3,2)", "lognormal(8k,12k) in 64..32k", "100:3,900:1", "7:0.5,8:0.25,4096:0.25",
    "5:0.0000001,7:20M", "3±0.000002",
)  # fmt: skip


def draws(law: Distribution, seed: int = 7, count: int = 5000) -> list[int]:
    rng = random.Random(seed)
    return [law.draw(rng) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "law"),
    [
        (512, Fixed(512)),
        ("1.5k", Fixed(1500)),
        ("512±64", Normal(512, 64)),
        (" 512 +- 64 ", Normal(512, 64)),
        ("2k±0.5k in 1..4k", Normal(2000, 500, low=1, high=4000)),
        ("100..900", Range(100, 900)),
        ("lognormal(512, 300)", Lognormal(512, 300)),
        ("lognormal(512,300) in 16..2k", Lognormal(512, 300, low=16, high=2000)),
        ("32k:1, 512:500", Empirical((512, 32_000), (500, 1))),
    ],
)
def test_a_distribution_is_read_as_people_write_it(text: str | int, law: Distribution) -> None:
    assert parse(text) == law


@pytest.mark.parametrize("text", TEXTS)
def test_its_text_and_its_data_are_read_back_to_the_same(text: str) -> None:
    law = parse(text)
    assert parse(str(law)) == law
    assert msgspec.json.decode(msgspec.json.encode(law), type=Distribution) == law


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-5", "'-5' is not a length: '-5' is not a number"),
        ("-5..10", "'-5..10' is not a length: '-5' is not a number"),
        ("-5±2", "'-5±2' is not a length: '-5' is not a number"),
        (0, "0 is not a length: 0 is not a whole number from 1 on"),
        ("0.5±2", "'0.5±2' is not a length: its mean is 1 or more, and its standard deviation above 0"),
        ("512±0", "'512±0' is not a length: its mean is 1 or more, and its standard deviation above 0"),
        ("900..100", "'900..100' is not a length: its range is reversed"),
        ("100..", "'100..' is not a length: '' is not a number"),
        ("1.5..9", "'1.5..9' is not a length: 1.5 is not a whole number from 1 on"),
        ("weibull(5)", "'weibull(5)' is not a length: 'weibull(5)' is not a number"),
        (
            "512±64 in 600..900",
            "'512±64 in 600..900' is not a length: only a mean has bounds, and it is within 600..900",
        ),
        ("512 in 1..900", "'512 in 1..900' is not a length: only a mean has bounds, and it is within 1..900"),
        ("512:1,512:2", "'512:1,512:2' is not a length: each length comes once, with a weight above 0"),
        ("512:0", "'512:0' is not a length: each length comes once, with a weight above 0"),
        ("512:1,", "'512:1,' is not a length: '' is not a number"),
        ("20M±5", "'20M±5' is not a length: no model has a context of more than 10,000,000 tokens"),
        ("±64", "'±64' is not a length: '' is not a number"),
        ("lognormal(512)", "'lognormal(512)' is not a length: '' is not a number"),
        ("lognormal(512,300", "'lognormal(512,300' is not a length: 'lognormal(512,300' is not a number"),
    ],
)
def test_a_mistake_is_one_line_with_place_and_all_ways(text: str | int, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        parse(text, "x")
    ways = "write it like 512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'"
    assert str(caught.value) == f"x: {line}; {ways}"


def test_a_die() -> None:
    die = parse("1..6")
    assert [die.cdf(n) for n in (0, 1, 3, 6, 7)] == [0.0, 1 / 6, 0.5, 1.0, 1.0]
    assert [die.quantile(p) for p in (0.0, 0.16, 0.17, 0.5, 0.51, 1.0)] == [1, 1, 2, 3, 4, 6]
    assert die.mean() == 3.5


def test_a_normal_distribution_by_hand() -> None:
    """Φ(1.96) = 0.975: 512 + 1.96 · 64 = 637.4; up to 576 is up to 576.5, 1.0078 deviations, Φ = 0.8432."""
    law = parse("512±64")
    assert (law.quantile(0.5), law.quantile(0.975)) == (512, 637)
    assert law.cdf(576) == pytest.approx(0.8432, abs=1e-4)
    assert law.mean() == pytest.approx(512.0)


def test_what_is_below_1_is_drawn_again_and_the_mean_says_so() -> None:
    """Of N(1, 0.5) above 0.5, Φ(1) = 0.841345 of all: 1 has 0.682689, 2 has 0.157305, 3 has 0.001350.

    (0.682689 + 2 · 0.157305 + 3 · 0.001350) / 0.841345 = 1.19018
    """
    law = parse("1±0.5")
    assert law.cdf(1) == pytest.approx(0.682689 / 0.841345, abs=1e-6)
    assert law.mean() == pytest.approx(1.19018, abs=1e-5)
    assert min(draws(parse("1±100"))) == 1


def test_half_a_normal_distribution_by_hand() -> None:
    """Above its mean it has the mean sd · √(2/π) more: 10,000 + 1000 · 0.797885, and half a token for the bound's."""
    law = parse("10000±1000 in 10000..10M")
    assert law.mean() == pytest.approx(10_797.885, abs=0.5)
    assert law.quantile(0.6827) == pytest.approx(11_000, abs=1)  # within one deviation


def test_a_lognormal_distribution_has_the_mean_and_the_deviation_of_the_lengths_themselves() -> None:
    """The median is 512 / √(1 + (300/512)²) = 441.8; ln(1 + 0.34332) = 0.29515 = 0.54328²; 441.8 e^0.54328 = 760.5."""
    law = parse("lognormal(512,300)")
    assert (law.quantile(0.5), law.mean()) == (442, pytest.approx(512.0, abs=1e-3))
    assert law.quantile(0.841345) == pytest.approx(760.5, abs=1)
    found = draws(law, count=20_000)
    mean = sum(found) / len(found)
    assert math.sqrt(sum((n - mean) ** 2 for n in found) / len(found)) == pytest.approx(300, rel=0.05)


def test_half_of_a_lognormal_distribution_by_hand() -> None:
    """σ = 1 where sd = mean · √(e - 1): below its median lies Φ(-σ) / Φ(0) = 0.158655 / 0.5 of the mean."""
    nominal = 100_000.0
    law = Lognormal(nominal, nominal * math.sqrt(math.e - 1), high=round(nominal / math.sqrt(math.e)))
    assert law.mean() == pytest.approx(31_731, rel=1e-3)


def test_lengths_with_weights_by_hand() -> None:
    law = parse("512:500,32k:1")
    assert law.mean() == pytest.approx((512 * 500 + 32_000) / 501)
    assert [law.cdf(n) for n in (511, 512, 31_999, 32_000)] == [0.0, 500 / 501, 500 / 501, 1.0]
    assert [law.quantile(p) for p in (0.0, 0.99, 500 / 501, 0.999, 1.0)] == [512, 512, 512, 32_000, 32_000]


def test_lengths_that_were_seen_are_drawn_as_often() -> None:
    assert observed([40, 7, 7]) == Empirical((7, 40), (2.0, 1.0))


@pytest.mark.parametrize("text", TEXTS)
def test_draws_fit_what_the_distribution_says_of_itself(text: str) -> None:
    law = parse(text)
    found = draws(law)
    assert min(found) >= 1
    assert kolmogorov_smirnov(found, law.cdf) > 0.01
    many = draws(law, count=20_000)
    assert sum(many) / len(many) == pytest.approx(law.mean(), rel=0.02)


def test_draws_of_another_distribution_do_not_fit() -> None:
    found = draws(parse("512±64"))
    for other in ("512±72", "518±64", "400..624", "lognormal(512,64)", "512"):
        assert kolmogorov_smirnov(found, parse(other).cdf) < 0.01, other


@pytest.mark.parametrize("text", ["1±0.5", "100±200", "1000±300 in 900..1100", "100..900", "lognormal(3,2)"])
def test_the_mean_is_that_of_all_lengths_by_their_shares(text: str) -> None:
    law = parse(text)
    shares = ((n, law.cdf(n) - law.cdf(n - 1)) for n in range(1, 4000))
    assert law.mean() == pytest.approx(sum(n * share for n, share in shares), abs=1e-3)


@given(st.sampled_from(TEXTS), st.floats(0.0, 1.0))
def test_a_quantile_is_the_smallest_length_that_so_many_do_not_pass(text: str, p: float) -> None:
    law = parse(text)
    n = law.quantile(p)
    assert law.cdf(n) >= p - 1e-9
    assert n == law.quantile(0.0) or law.cdf(n - 1) < p + 1e-9


def test_the_same_random_numbers_give_the_same_lengths() -> None:
    law = parse("lognormal(512,300)")
    assert draws(law, 3) == draws(law, 3) != draws(law, 4)
