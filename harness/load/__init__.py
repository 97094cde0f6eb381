"""Measuring: what is asked, when, over which socket, and the record of what came back."""
