"""Networks: one short file per family."""
