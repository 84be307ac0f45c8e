from talerec.neural.checkpoints import read as read
from talerec.neural.nets.base import Net as Net
from talerec.neural.settings import VERSION as VERSION
from talerec.neural.settings import NetSettings as NetSettings
from talerec.neural.settings import Rows as Rows
