"""From pairs of rows to the Gram: G = S'S and K = S'T."""
