from talerec.models.ranker.candidates import FirstStage as FirstStage
from talerec.models.ranker.candidates import Requests as Requests
from talerec.models.ranker.model import Ranker as Ranker
from talerec.models.ranker.trees import Trees as Trees
from talerec.models.ranker.trees import parse_trees as parse_trees
