"""What the hardware should give: catalog, model, roofline, and one step machine with two clocks. Pure.

question → catalog, model (layers, quantisation), deployment → step → roofline → the prediction
beside it: rules (of thumb), golden (cases), claims (that go round), choice (which GPU), batching (the machine)
"""
