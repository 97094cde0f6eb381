"""Thresholds on measured runs: met, missed or unresolved, each by an interval.

    expression  "plateau >= 0.95*baseline" as data
    figures     what a run measured, by name, with its interval
    sides       the runs and their baseline: levels by load, and a figure over repeats
    decision    a threshold, the runs and their baseline → an outcome, and why

A figure without an interval decides nothing, and neither does one of an invalid level.
"""
