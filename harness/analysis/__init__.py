"""Arrays in, values out: the window, the figures, the statistics, the curve. Never imports what measures.

- A request belongs to the level in which it was sent; its tokens belong to the window in which they arrive.
- In open loop a request belongs to the window in which it was due; what waits beyond `--max-concurrency`, or for us,
  is lag, and stands in the headline latencies. Open levels are no points of the curve.
- An open level whose requests in flight rise beyond doubt (the 95 % interval of the slope over four to ten parts of
  the window, each of two request times where there is room) has no latencies, only rates.
- Throughput is void on the client's account only by harm: more than 2 % of the slots' time lay between the end of an
  answer and the next send (`client_limited`), records are lost, or fewer are in flight than requested. Processor,
  ceiling, merged and late reads are a doubt with cause and remedy (`client_busy`). Under the kernel's stamps late
  reads cost percentiles of gaps: all where read delay p99 passes ITL/2 or more than 5 % of the events were merged
  late, p99 above 1 %. Under the clock's stamps also those of a latency that the delay is more than 5 % of, and the
  delay counts as sent late.
- What the server sends at once is one lump: ICL is between lumps, ITL has no percentiles, TPOT leaves the first lump
  out.
- A worker that stood still longer than 0.5 s inside a window is doubted; above 1 % of the window its level is void if
  requests were sent late for it, or the clock stamps. A machine that slept (CLOCK_BOOTTIME ahead of CLOCK_MONOTONIC)
  voids its level; a paused parent is only noted, load goes on.
"""
