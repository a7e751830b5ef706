"""Runs the actions of a plan in order: allocate, consolidate, reclaim, preempt; and keeps room for partial gangs."""
