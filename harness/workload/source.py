"""Where a run's requests come from: the same request for the same number, on any worker."""

from __future__ import annotations

from harness.workload.mixed import Mixed
from harness.workload.uniform import Uniform

Source = Uniform | Mixed  # each with `seed`, `prompt_words` (of the mean prompt) and `request(number)`
