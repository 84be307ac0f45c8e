from talerec.reports.charts.plots import Series as Series
from talerec.reports.charts.plots import bar_chart as bar_chart
from talerec.reports.charts.plots import line_chart as line_chart
from talerec.reports.charts.row_charts import DotRow as DotRow
from talerec.reports.charts.row_charts import dot_chart as dot_chart
from talerec.reports.charts.row_charts import stacked_bar_chart as stacked_bar_chart
from talerec.reports.markup import Html as Html
from talerec.reports.page import standalone_svg as standalone_svg
