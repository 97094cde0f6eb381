"""Stacks compared: measured runs in, a `Comparison` out.

    labels      which folders and files are of which stack
    runs        a run as it is compared: its facts, its levels, its curve's points
    fairness    what must agree, row by row: equal, allowed, unknown, fatal
    ratio       one throughput over another, with the interval that repeats carry
    turnover    the load at which the order of two stacks turns over
    comparison  all of it together, and who may be called faster

A difference is shown only where its interval excludes 1. A fatal row refuses the ranking, and so do too few repeats.
"""
