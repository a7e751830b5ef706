"""Judges raw objects before they are stored: what a new managed pod still needs, and contradictions in objects.

Only this code and `decode` know the names of their fields. Pure functions of the object and the known state.
"""
