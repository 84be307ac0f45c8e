"""Neural models: samples, networks, losses and one trainer. NumPy and torch alone; a training runs where only these are."""
