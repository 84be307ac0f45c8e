from talerec.models.counting.personal import LastBasket as LastBasket
from talerec.models.counting.personal import Personal as Personal
from talerec.models.counting.popular import Popular as Popular
from talerec.models.counting.popular import Trending as Trending
from talerec.models.counting.rules import Association as Association
from talerec.models.counting.rules import LagCountModel as LagCountModel
from talerec.models.counting.rules import Markov as Markov
from talerec.models.counting.rules import Rules as Rules
