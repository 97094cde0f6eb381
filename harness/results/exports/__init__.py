"""A result for other tools, one module a format: levels as rows, and files in the shape of another benchmark's.

Each file has the figures of Knee's own summary, renamed and in the other tool's units; nothing is worked out anew. What
the other format demands and Knee did not measure is left out or null, never 0. `results.foreign` reads the files back.
"""
