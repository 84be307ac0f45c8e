from talerec.serve.online.comparison import CandidateComparison as CandidateComparison
from talerec.serve.online.evaluation import EvaluationProcess as EvaluationProcess
from talerec.serve.online.impressions import ImpressionCounts as ImpressionCounts
from talerec.serve.online.impressions import impression_lines as impression_lines
from talerec.serve.online.metrics import CANDIDATE as CANDIDATE
from talerec.serve.online.metrics import OnlineMetrics as OnlineMetrics
from talerec.serve.online.metrics import is_in_share as is_in_share
from talerec.serve.online.metrics import prometheus_lines as prometheus_lines
