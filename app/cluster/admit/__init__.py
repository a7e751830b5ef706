"""Judges raw objects before they are stored: what a new pod of ours still needs, and what contradicts itself.

Beside `decode` the only code that knows the names of their fields. Pure functions of the object and of what is known.
"""
