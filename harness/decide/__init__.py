"""Decisions from results: cost and replicas. Beside them the golden cases, known figures that are worked out. Pure."""
