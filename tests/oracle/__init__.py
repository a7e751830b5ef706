"""Scenarios whose Commands and answers are kept as digests, so that no decision changes unseen."""
