"""The networks, one short file per family: each encodes the rows of a batch as states."""
