"""What a Python program calls: measure, read, predict, fit, compare (docs/library.md).

The same functions are behind the verbs of the command line. They take and return plain data, data frames of pandas, and
figures of matplotlib; a mistake of the caller is a HarnessError, as it is one line of the command line.
"""
