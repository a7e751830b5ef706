"""The actions of a plan in their order: allocate, consolidate, reclaim, preempt; and the room kept for gangs."""
