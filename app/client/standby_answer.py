"""How a client knows the answer of a replica on standby."""

STANDBY = "urn:leeboard:standby"
"""The `type` of its problem document."""
