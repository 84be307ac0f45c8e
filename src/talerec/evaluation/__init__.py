"""From the questions of a split to figures, intervals, comparisons and tuning."""
