"""What the hardware should give: catalog, model, roofline, and one step machine with two clocks. Pure.

question, served → catalog, model (families, mlps, layers, quantisation), deployment → step → steady → limits → roofline
further: rules (of thumb), claims (unsourced figures), disaggregated (two pools, above roofline), batching (the
machine, of sequences) → simulate → stepped, fitting → calibration
"""
