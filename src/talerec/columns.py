"""Names of columns, in one place."""

USER = "user_id"
ITEM = "item_id"
TIME = "timestamp"
USUAL = (USER, ITEM, TIME)
SCORE = "score"
RANK = "rank"
HISTORY = "history"
SHARE = "contribution"
BOOST = "boost"

#: Names under which an item table may hold titles, best first.
TITLES = ("title", "name", "movie_title", "item_name", "product_title")

#: User, item and time in files as they are published: Amazon reviews, Yelp reviews, MovieLens CSV.
PUBLISHED = (
    ("reviewerID", "asin", "unixReviewTime"),
    (USER, "business_id", "date"),
    ("userId", "movieId", TIME),
)
