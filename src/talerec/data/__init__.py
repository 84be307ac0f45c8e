"""What a log is, how it gets in, and how it is cut."""
