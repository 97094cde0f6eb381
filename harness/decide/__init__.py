"""Decisions from results, pure: which stack is faster, whether thresholds are met, how many replicas a demand needs.

compare      stacks under one work
check        thresholds on one run or several, on their own or against a baseline
plan         from one replica's measured curve to a fleet and its cost
listing      result folders as rows
choice       which GPU, for its tokens or for a demand
calibration  what a prediction needs of measured runs
levels       the levels of a run, read alike by all of them
"""
