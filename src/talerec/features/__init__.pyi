from talerec.features.families import FAMILIES as FAMILIES
from talerec.features.families import build_features as build_features
from talerec.features.families import feature_families as feature_families
from talerec.features.families import feature_names as feature_names
from talerec.features.inputs import FeatureFamily as FeatureFamily
from talerec.features.inputs import FeatureInputs as FeatureInputs
from talerec.features.inputs import PartScores as PartScores
from talerec.features.item_times import ItemTimes as ItemTimes
