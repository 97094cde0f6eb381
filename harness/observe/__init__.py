"""Looking at server and host while load runs: in the parent process, off the measured path."""
