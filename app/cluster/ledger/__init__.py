"""The account of every pod: at most one charge on a node and a queue.

assumed (admission let the pod in) -> reserved (`ReservationState`) -> bound -> releasing (the pod is being deleted).
`AssumedPods` holds the first state, `Reservations` the second; `state.Settlement` derives the charge, `Charges` sums.
"""
