"""What is asked: requests, each a function of a seed and a number, and when they begin. Pure."""
