"""Names of columns in logs, item tables and results."""

USER = "user_id"
ITEM = "item_id"
TIME = "timestamp"
DEFAULT = (USER, ITEM, TIME)
SCORE = "score"
RANK = "rank"
HISTORY = "history"
LIST_RANK = "list_rank"
LEAD = "lead"
SHARE = "contribution"
BOOST = "boost"
SHARED = "shared"
SLOT = "slot"

#: Names of an item table's column of titles, preferred first.
TITLES = ("title", "name", "movie_title", "item_name", "product_title")

#: User, item and time in published files: Amazon reviews, Yelp reviews, MovieLens CSV.
PUBLISHED = (
    ("reviewerID", "asin", "unixReviewTime"),
    (USER, "business_id", "date"),
    ("userId", "movieId", TIME),
)
