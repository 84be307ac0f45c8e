"""Names of columns, once."""

USER = "user_id"
ITEM = "item_id"
TIME = "timestamp"
USUAL = (USER, ITEM, TIME)
SCORE = "score"
RANK = "rank"
HISTORY = "history"
SHARE = "contribution"

#: Names under which an item's title is found in a side table, best first.
TITLES = ("title", "name", "movie_title", "item_name", "product_title")

#: User, item and time in files as they are published: Amazon reviews, Yelp reviews, MovieLens CSV.
FOREIGN = (
    ("reviewerID", "asin", "unixReviewTime"),
    (USER, "business_id", "date"),
    ("userId", "movieId", TIME),
)
