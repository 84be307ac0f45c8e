from talerec.models.content.features import ItemEncoder as ItemEncoder
from talerec.models.content.model import Content as Content
from talerec.models.content.model import encode_queries as encode_queries
from talerec.models.content.model import find_types as find_types
from talerec.models.content.model import is_described as is_described
from talerec.models.content.new_items import extend_fitted as extend_fitted
from talerec.models.content.new_items import place_rows as place_rows
