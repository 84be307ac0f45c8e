"""From G and K to weights."""
