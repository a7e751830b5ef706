"""Leeboard's components in a simulated cluster under seeded faults, in virtual time, judged by invariants."""
