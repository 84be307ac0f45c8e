from talerec.models.neighbors.models import SKNN as SKNN
from talerec.models.neighbors.models import STAN as STAN
from talerec.models.neighbors.tifuknn import TIFUKNN as TIFUKNN
