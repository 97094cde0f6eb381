"""The simulated endpoint: the step machine of predict.batching behind plain sockets, with its own write log."""
