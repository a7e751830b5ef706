"""The scheduling cycle: plans, victim searches, reservations, pending preemptions, releases of held pods.

`planning` runs the cycle. `apply_plan` turns a finished plan into reservations and evictions after `recheck`.
`attempts` ends attempts that failed or took too long.
"""
