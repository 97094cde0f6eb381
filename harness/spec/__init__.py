"""What is asked for: the scenario file and its parts, such as classes, traffic, lengths, limits and recipes.

Every value is read strictly: an unknown field is an error with its path and the nearest right name.
Nothing here does anything; `run` resolves a scenario and `workload` makes its requests.
"""
