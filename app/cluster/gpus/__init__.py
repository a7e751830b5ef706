"""The state of every GPU: reports of agents, holders of parts, and reservation pods."""
