"""What was decided and tried lately: decisions, back-off after failures, and the words in which they are told.

It keeps and words; it decides nothing.
"""
