"""Knee by its own name: `import knee` gives the package `harness` itself, so that both names have the same objects."""

import sys

import harness

TYPE_CHECKING = False  # as in harness, for its reason
if TYPE_CHECKING:
    from harness import *  # noqa: F403

sys.modules[__name__] = harness
