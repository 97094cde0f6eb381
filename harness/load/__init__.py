"""Measuring: who sends, over which socket, and the record of what came back."""
