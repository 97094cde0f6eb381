"""Stacks compared: measured runs in, a `Comparison` out.

    runs        a run as it is compared: its stack, its facts, its levels, its curve's points
    fairness    what must agree, row by row: equal, allowed, unknown, fatal
    spread      how much runs of one server differ, pooled over all stacks; which run is off; ratios of throughput
    pairs       two stacks: who may be called faster, at which loads, and where their order changes
    comparison  all stacks under one workload, also at the same throughput and at the same latency

A difference is shown only where its interval excludes 1. A fatal row refuses the ranking.
"""
