"""Arrays in, results out: the window, the metrics, the statistics, the curve. Never imports load."""
