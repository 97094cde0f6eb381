"""What the hardware should give: catalog, model, roofline, and one step machine with two clocks. Pure.

question → catalog, model (families, layers, quantisation), deployment → step → steady (and its limits) → roofline
further: claims (unsourced figures, rules of thumb), disaggregated (two pools, above roofline), batching (the
machine, of sequences) → simulate → stepped, fitting → calibration
"""
