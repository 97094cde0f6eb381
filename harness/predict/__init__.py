"""What the hardware should give: catalog, model, roofline, and one step machine with two clocks. Pure.

question → catalog, model (families, layers, quantisation), deployment → step → steady, limits → roofline
beside it: rules (of thumb), claims (that go round), choice (which GPU), batching (the machine) → simulate → stepped,
tune (least_squares) → calibrated
"""
