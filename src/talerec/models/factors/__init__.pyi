from talerec.models.factors.fpmc import FPMC as FPMC
