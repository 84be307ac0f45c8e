"""A synthetic bookshop: many books, few rows each, authors and genres that users follow.

A user's next book is by an author of the last four books (20 %), of one of two favourite genres
(55 %), or any (25 %); among these, popular books and those that fit the user's hidden taste are
more likely. A quarter of the books come out during the log. With the defaults, 17 % of the last
fifth of the rows are about books without earlier rows, and 35 % about books with one to four.
"""

from __future__ import annotations

import numpy as np
import polars as pl

import talerec as tr

_START, _YEARS = 1_420_070_400, 5 * 365 * 86_400  # seconds: from 2015 on
_GENRES, _TASTES = 30, 6


def build_bookshop(seed: int = 0, n_books: int = 12_000, n_users: int = 3000) -> tr.Log:
    """Return the log of a shop with its item table: title, author, genre."""
    draw = np.random.default_rng(seed)
    n_authors = max(n_books * 7 // 24, 1)
    size = 1 / (1 + np.arange(n_authors)) ** 0.6
    author = draw.choice(n_authors, n_books, p=size / size.sum())
    genre = draw.integers(0, _GENRES, n_authors)[author]
    genre = np.where(draw.random(n_books) < 0.8, genre, draw.integers(0, _GENRES, n_books))
    since = np.where(draw.random(n_books) < 0.75, 0.0, draw.random(n_books))
    fame = draw.normal(0, 0.5, n_authors)[author]
    popularity = np.exp(draw.normal(0, 1.3, n_books) + fame)
    book_taste = draw.normal(0, 1, (n_books, _TASTES))
    by_author = [np.flatnonzero(author == a) for a in range(n_authors)]
    by_genre = [np.flatnonzero(genre == g) for g in range(_GENRES)]
    rows = []
    for user in range(n_users):
        taste, liked = draw.normal(0, 1, _TASTES), draw.choice(_GENRES, 2)
        times = np.sort(0.6 * draw.random() + 0.4 * draw.random(2 + draw.geometric(1 / 9)))
        had: list[int] = []
        for time in times:
            chance = draw.random()
            if had and chance < 0.2:
                books = by_author[author[draw.choice(had[-4:])]]
            elif chance < 0.75:
                books = by_genre[draw.choice(liked)]
            else:
                books = draw.integers(0, n_books, 400)
            books = np.setdiff1d(books[since[books] <= time], had)
            if not len(books):
                continue
            share = popularity[books] * np.exp(0.5 * book_taste[books] @ taste)
            is_dated = since[books] > 0
            share *= np.where(is_dated, 1 + 3 * np.exp(-8 * (time - since[books])), 1)
            had.append(int(draw.choice(books, p=share / share.sum())))
            rows.append((user, had[-1], _START + int(time * _YEARS)))
    words = draw.integers(0, 5000, (n_books, 2))
    table = pl.DataFrame(
        {
            "item_id": range(n_books),
            "title": [f"g{g}w{a % 40} w{a} w{b}" for g, (a, b) in zip(genre, words, strict=True)],
            "author": [f"author {a}" for a in author],
            "genre": [f"genre {g}" for g in genre],
        }
    )
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s").with_items(table)
