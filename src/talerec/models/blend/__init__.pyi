from talerec.models.blend.model import Blend as Blend
from talerec.models.blend.parts import fit_part as fit_part
from talerec.models.blend.parts import fit_parts as fit_parts
from talerec.models.blend.parts import learn_part_weights as learn_part_weights
from talerec.models.blend.parts import parse_models as parse_models
from talerec.models.blend.parts import parse_parts as parse_parts
from talerec.models.blend.stacking import stack_parts as stack_parts
from talerec.models.blend.stacking import unstack_parts as unstack_parts
