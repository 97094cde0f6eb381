"""Samples of server, GPUs and host while load runs: in the parent process, off the measured path."""
