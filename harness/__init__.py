"""Knee: load testing for LLM servers that ends in an answer."""

__version__ = "0.1.0"
