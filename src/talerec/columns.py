"""Names of columns, once."""

USER = "user_id"
ITEM = "item_id"
TIME = "timestamp"
SCORE = "score"
RANK = "rank"
HISTORY = "history"
SHARE = "contribution"

#: Names under which an item's title is found in a side table, best first.
TITLES = ("title", "name", "movie_title", "item_name", "product_title")
