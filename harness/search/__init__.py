"""Which level comes next, how long it lasts, and when the search ends: finished levels in, a decision out.

- A level's window begins after the transient, which is found by MSER over warm-up and window in bins of max(50 ms, 5
  median gaps). How long a level lasts is decided by `search/pace.py`, from the level's role, the time of a request and
  the time left; docs/knee.md has the table. Its figures are of the whole request times in it
  (`window.whole_requests`), which are the `window` of the summary.
- A ramp decides on the figures that the report shows, and on nothing else, so a resumed run goes on as if it had never
  ended. The role of each level is in its frame of the spool, next to the reason, a sentence for people
  (`search/decision.py`).
- A level that is invalid is measured once more. Where the ramp chose its levels an invalid one is left out of the
  curve and voids no other; only errors, which are the server's, keep the ramp from higher levels.
- More than 1 % of errors exclude that concurrency and all above it, unless as many or more in flight went without
  errors before; then the level is measured once more, like any other invalid one.
"""
