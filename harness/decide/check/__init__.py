"""Thresholds held against measured runs: met, missed or unresolved, each by an interval.

    expression  "plateau >= 0.95*baseline" as data
    figures     what a run measured, by name, with its interval
    measured    a run, and its levels by their load
    repeats     a figure's repeats, pooled within a run and a sample over runs
    decision    a threshold, the runs and their baseline → an outcome, and why

A figure without an interval decides nothing, and neither does one of an invalid level.
"""
