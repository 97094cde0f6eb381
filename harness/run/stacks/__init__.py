"""Servers that are started for a measurement and taken away again, each by its recipe.

`command` finds recipes and makes the words of one, `watchdog` is the process that owns what they start, and `endpoint`
is an endpoint, once it has answered, as long as a `with` block lasts. Left out: servers on other machines, which a
scenario names by their URL.
"""
