"""How many replicas, and what they cost: from the measured curve of one replica to a fleet for a demand.

    capacity     what one replica was measured to do at each load
    question     the demand, the reserve and the prices
    operating    the load at which each replica is to run: by SLO, by cost, or at the bend
    fleet        how many replicas carry the demand, with what in reserve
    day          a day's traffic: a fleet for the peak against one that follows the traffic
    offline      a batch of work with a deadline
    bill         dollars per hour, month, million tokens, request and user
    outlook      growth, and what an optimisation saves
    energy       watts that were measured, as energy, money and carbon
    alerts       thresholds for autoscaling and alerts, as text and as Prometheus rules
    reference    widely quoted tables, on request
    plan         all of it together
    what_if      the measured loads for a page, which plans again while its reader moves a slider

Nothing goes beyond the measured loads: a replica is planned at a load that was measured. Replicas are taken to be alike
and evenly loaded. Where a figure rests on more than that, `Plan.notes` says so.
"""
