from talerec.serve.users.histories import UserHistories as UserHistories
from talerec.serve.users.histories import find_rows as find_rows
from talerec.serve.users.histories import read_trained_seq as read_trained_seq
from talerec.serve.users.histories import trained_seq as trained_seq
from talerec.serve.users.histories import warn_if_restored as warn_if_restored
from talerec.serve.users.user_state import UserState as UserState
from talerec.serve.users.user_state import validate_events as validate_events
from talerec.serve.users.user_state import validate_user_id as validate_user_id
