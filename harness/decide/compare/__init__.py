"""Stacks compared: measured runs in, a `Comparison` out.

    runs        a run as it is compared: its stack, its facts, its levels, its curve's points
    fairness    what must agree, row by row: equal, allowed, unknown, fatal
    ratio       one throughput over another, with the interval that repeats carry
    crossover   the load at which the curves of two stacks cross
    comparison  all of it together, and who may be called faster

A difference is shown only where its interval excludes 1. A fatal row refuses the ranking, and so do too few repeats.
"""
