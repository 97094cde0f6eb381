"""Asks for a level, holds it, looks, goes on: the only room that stands on load and analysis."""
