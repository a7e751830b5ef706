"""The cluster as the watches showed it, and the reservations of Leeboard. State without I/O."""
