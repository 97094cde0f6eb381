"""Decisions from results: cost and replicas. And the golden cases, known figures worked out again. Pure."""
