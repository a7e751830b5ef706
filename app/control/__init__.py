"""The only place where deciding, remembering and talking meet."""
