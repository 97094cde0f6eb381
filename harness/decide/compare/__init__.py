"""Stacks compared: measured runs in, a `Comparison` out.

    facts       what a run states of its work, its hardware and its server, as words
    runs        a run as it is compared: its stack, its facts, its levels, its curve's points
    fairness    what must agree, row by row: equal, allowed, unknown, fatal
    spread      how much runs of one server differ, pooled over all stacks, and which run is off
    ratio       one throughput over another, with the interval that repeats carry
    crossover   the load at which the order of two stacks changes
    pairs       two stacks: who may be called faster, and at which loads
    equal       latency at the same throughput, and throughput at the same latency
    comparison  all stacks under one workload

A difference is shown only where its interval excludes 1. A fatal row refuses the ranking.
"""
