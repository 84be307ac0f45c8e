"""Charts as SVG text: axes and scales, marks, plots of x and y, charts of named rows."""
