"""Decisions from results: cost, replicas, and which stack is faster (`compare`). Pure.

And the golden cases, known figures worked out again.
"""
