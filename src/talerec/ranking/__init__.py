"""From weights and a history to scores, ranks and reasons."""
