"""What the hardware should give: catalog, model, roofline, and one step machine with two clocks. Pure."""
