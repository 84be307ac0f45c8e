"""The command `talerec`."""
