"""What knows the machine and nothing of recommending: arrays, compiled kernels, threads, memory, progress, clock, files."""
