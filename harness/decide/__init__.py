"""Decisions from results: cost and replicas. Pure."""
