"""A run from its first request to its last file: the only room that uses both load and analysis.

`experiment` is one run. It reads the dataset (`requests`), asks the endpoint (`launch`, whose `checks` fill the one
record of it, `Endpoint`), shows the plan (`estimate`), writes the manifest with the prediction (`manifest`,
`prediction`), and measures level after level (`levels`) over the workers of the load room. What they send comes in
through `live_state`, what else is watched through `telemetry`; `ending` says why the load ended, `resume` goes on with
it. `series` is many runs, one after the other: a level map (`campaign`), a comparison of stacks (`stacked`), whose
servers `stacks` starts, and a search for settings (`tuned`). `calibrate` measures this machine's load generator by
trials (`trial`).

- Without `--seed` each run draws one, so that a server that is still warm does not know the prompts.
- The exit status is 3 if no valid level is left, or if a level of `--levels` or `--rate` has an `invalid` verdict,
  except the last one if its errors ended the run.
- A calibration whose server was the limit, or that had fewer processors, is a lower bound; it is not stale.
- A whole answer's time is estimated from a few tokens: the timed first request has at most 16.
- A worker that dies, or sends nothing for 30 s (then it is killed), ends the run with status 1: its level is void,
  the finished levels stay, and the verdict `requests_lost` says how many sent requests have no record, at least.
- `knee run --resume DIR` takes the scenario from the folder. Finished levels stay; unfinished ones are void and
  measured again under a new index. Each session has 2³² prompt numbers of its own, so no prompt is sent twice.
  Budgets are the run's, not the session's. All sessions share one clock: the old origin within one boot, else times
  go on by the wall clock.
- A check has one deadline, connecting and heads included: a minute for the list of models, ten seconds for an
  optional page, five for a scrape, never more than `--request-timeout`. Its answer has at most 4 MiB, also once
  inflated. gzip and deflate are accepted, other codings are refused by name.
"""
