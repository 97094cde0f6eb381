"""Measuring: who sends, over which socket, and the record of what came back.

- Clock: CLOCK_MONOTONIC, one origin for the whole run, in the manifest.
- Send: stamped just before the first byte is written, on an open connection; connecting is a column of its own.
- Arrival: SO_TIMESTAMPNS of the last segment of the read, moved to CLOCK_MONOTONIC by an offset read anew each
  second; the clock where the kernel gives no stamp.
- Several events in one read share its stamp; of one chunk, or found within half an ITL of the look before, they are
  the server's lump (`lumped`), else our late read (`merged` without them).
- Tick: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms). It bounds how late a next request is sent, not how exact a stamp
  is.
- Garbage collection is frozen and off in the worker; it collects when a level changes.
- Requests that we cut at the end of the run are `cancelled`: their tokens count, they are no errors.
- After failures a slot pauses (50 ms, doubling up to 1 s): a server that refuses is not flooded, nothing is retried,
  and the pause stands in the record as lag. A Retry-After is kept up to the same second.
- Bytes sent into a connection that the server had closed after the answer before, though it promised to keep it, are
  not yet a request: they are sent again on a fresh connection, stamped anew and counted in the manifest, and from
  then on every request opens its own connection. Only where that is certain: the first write failed, or the server's
  FIN came and acknowledged not a byte of them. Any other end without an answer is the failure `reset`. httpx shows no
  such thing, so there nothing is sent again.
- A connection that idled for 4 s is not used again: uvicorn, and vLLM with it, ends one after 5 s, and a request sent
  at that moment is a `reset`. Where fewer requests are in flight than before, connections idle that long.
- Where the wall clock is set, the kernel's stamps of that one poll are replaced by the clock's: its offset is
  compared at every poll, so no arrival lies in the future or before its request.
- Several workers prepare a level (connections open, requests built) before any of them begins it; a level is
  announced 5 ms ahead. The client is as short of time as its busiest worker.
- A worker whose parent is gone stops its load at once; one whose messages nobody takes for 30 s stops its load, keeps
  its records and hands them over later.
"""
