"""Verdicts on a result: notes, doubts and invalids, as values with advice.

One small function a verdict: it returns the verdict, or None where it does not apply. A message states the fact
with its figures, the advice what to do. They stand by what they are about: the load generator (`client`), the server
and its GPUs (`server`), the tokens sent and received (`tokens`), a level's length and steadiness (`window`), what was
asked for (`workload`), and what several levels show together (`curve`); `level` passes all those on one level. Left
out: what a run's exit status is.
"""
