"""Distributions for tests of what is drawn: a constant, and whole numbers of a range."""

from __future__ import annotations

import random

import msgspec


class Constant(msgspec.Struct, frozen=True):
    value: int

    def draw(self, rng: random.Random) -> int:
        return self.value


class Between(msgspec.Struct, frozen=True):
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)
