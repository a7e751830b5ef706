"""From a plan to pods that may start: plans, victim searches, reservations, pending preemptions, releases.

`planning` runs the cycle; `apply_plan` turns a finished plan into reservations and evictions after `recheck`;
`attempts` ends what failed or took too long.
"""
