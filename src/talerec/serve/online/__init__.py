"""TODO: what this room is for."""
