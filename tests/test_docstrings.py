"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.test_rooms import modules

WITH_EXAMPLES = [name for name, source in modules().items() if ">>> " in source]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert found.attempted > 0
    assert found.failed == 0
