"""Servers that are started for a measurement and taken away again, each by its recipe.

`shipped` finds recipes, `command` makes the words of one, `watchdog` is the process that owns what they start, `server`
its other end here, and `endpoint` puts them together: an endpoint, once it has answered, as long as a `with` block
lasts. Left out: servers on other machines, which a scenario names by their URL.
"""
