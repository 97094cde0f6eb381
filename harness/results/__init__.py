"""A result folder, and other tools' files: the one room that knows their bytes."""
