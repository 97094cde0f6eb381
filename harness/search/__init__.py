"""Which level comes next, how long it lasts, and when the search ends: finished levels in, a decision out."""
