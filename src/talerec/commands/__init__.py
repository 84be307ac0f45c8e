"""The commands of `talerec`, by what they are for. Each is a few lines: read, call the library, show."""
