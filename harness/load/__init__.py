"""Sending requests, stamping what arrives, and making a record of each response.

- Clock: CLOCK_MONOTONIC, one origin for the whole run, in the manifest.
- Send: stamped just before the first byte is written, on an open connection; connecting is a column of its own.
- Arrival: SO_TIMESTAMPNS of the last segment of the read, moved to CLOCK_MONOTONIC by an offset read anew each
  second; the clock where the kernel gives no stamp.
- Several events in one read share its stamp. In one chunk, or within half an ITL of the previous poll, the server sent
  them together (`lumped`); else we read late (`merged` without them).
- Tick: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms), and down to 0.05 ms for requests below 64 ms. It bounds how late a
  next request is sent, not how exact a stamp is.
- A request of an open loop is sent by the loop's timer itself where a connection is open: a task would resume two turns
  later.
- Garbage collection is frozen and off in the worker; it collects when a level changes.
- Requests that are cut at the end of the run are `cancelled`: their tokens count, they are no errors.
- After failures a slot pauses (50 ms, doubling up to 1 s), so that a server that refuses is not flooded. Nothing is
  retried, and the pause is lag in the record. A Retry-After is kept up to one second.
- A request that goes into a connection which the server has already closed, after promising to keep it, is sent again
  on a fresh connection, stamped anew and counted in the manifest. This is done only where it is certain: the first
  write failed, or the server's FIN acknowledged no byte of it. Any other end without a response is the failure `reset`.
  httpx does not show this, so there nothing is sent again. After either every request opens its own connection.
- A connection that idled for 4 s is not used again: uvicorn, and vLLM with it, closes one after 5 s, and a request
  sent at that moment is a `reset`. Connections idle that long where fewer requests are in flight than before.
- When the wall clock is set, the kernel's stamps of that one poll are replaced by the clock's: the offset is compared
  at every poll, so no arrival lies in the future or before its request.
- Every worker prepares a level (connections open, requests built) before any of them begins it; a level is announced
  5 ms ahead, and to other machines by 20 errors of their clocks more. The client is as limited as its busiest worker.
- A worker whose parent is gone stops its load at once. One whose messages are not read for 30 s stops its load, keeps
  its records and sends them later.
"""
