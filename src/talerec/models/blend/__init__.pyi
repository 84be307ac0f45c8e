from talerec.models.blend.model import Blend as Blend
from talerec.models.blend.model import stack_parts as stack_parts
from talerec.models.blend.parts import learn_part_weights as learn_part_weights
