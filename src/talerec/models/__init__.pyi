from talerec.models.catalog import DEFAULT as DEFAULT
from talerec.models.catalog import MODELS as MODELS
from talerec.models.catalog import load as load
from talerec.models.catalog import model_class as model_class
from talerec.models.catalog import restore_bundle as restore_bundle
from talerec.models.updates import check_updatable as check_updatable
from talerec.models.updates import merge_item_tables as merge_item_tables
from talerec.models.updates import update as update
