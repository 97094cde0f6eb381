"""How many replicas, and what they cost: from the measured curve of one replica to a fleet for a demand.

    capacity     what one replica was measured to do at each load, and the load at which each is to run
    question     the demand, the reserve and the prices
    replicas     how many carry a peak, follow a day's traffic or finish a batch, and what they cost
    plan         all of it together, with thresholds for autoscaling and alerts, also as Prometheus rules

A replica is planned only at a load that was measured. Replicas are taken to be alike and evenly loaded. Where a figure
rests on more than that, `Plan.notes` says so.
"""
