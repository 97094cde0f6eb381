"""Arrays in, values out: the window, the figures, the statistics, the curve. Never imports what measures.

- A request belongs to the level in which it was sent; its tokens belong to the window in which they arrive.
- In open loop a request belongs to the window in which it was due; what waits beyond `--max-concurrency`, or for us,
  is lag, and stands in the headline latencies. Open levels are no points of the curve.
- An open level whose requests in flight rise beyond doubt (the 95 % interval of the slope over four to ten parts of
  the window, each of two request times where there is room) and beyond chance has no latencies, only rates.
- What a result is warned of is a rule, one function of `rules`. The load generator voids throughput only by harm; where
  it was short of time is a doubt. Late reads cost percentiles (`rules.figures.spoilt`); under the clock's stamps the
  delay counts as sent late.
- What the server sends at once is one lump: ICL is between lumps, ITL has no percentiles, TPOT leaves the first lump
  out.
"""

from __future__ import annotations

import os

# OpenBLAS starts a thread for each processor when numpy is loaded. A fit's matrices are too small for them, and while
# they wait for work they take processor time from the load generator. Processes that are started later do not get this.
if "OPENBLAS_NUM_THREADS" not in os.environ:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy as numpy

    del os.environ["OPENBLAS_NUM_THREADS"]
