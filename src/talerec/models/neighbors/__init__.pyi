from talerec.models.neighbors.models import SKNN as SKNN
from talerec.models.neighbors.models import STAN as STAN
