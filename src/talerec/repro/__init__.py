"""The paper that talerec reproduces: its figures, and the settings that lead to them."""
