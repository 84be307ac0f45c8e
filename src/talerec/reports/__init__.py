"""Pages and charts that need no other file and no script."""
