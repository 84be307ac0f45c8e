"""talerec: recommend what comes next, from a log of user, item and time.

    import talerec as tr
    log = tr.read_log("events.parquet")
    model = tr.Tempo().fit(log)
    model.recommend(["ann"], k=10)

Logs
    read_log, read_items      files and frames -> Log and its table of items
    Log, Histories            interactions sorted by user and time; histories to recommend for
    drop_duplicates, k_core, order_ties     cleaning
    leave_one_out, time_split, rolling_split, Split     training rows and held-out queries
    every_row_split                                     every later row as a query
    evaluate_baskets                                    the next basket as the target
    split_sessions, join_baskets          sessions as users, rows of a basket as one
    synthetic_log, synthetic_sessions     a generated shop; generated click sessions
    describe                  statistics of a log
Models
    Tempo, TALE, SLIS, SLIT, SLIST, EASE, EDLAE, RDLAE, SWalk     linear models
    SKNN, STAN, Markov, Rules, Association, Popular, Trending, FPMC     others
    Personal, LastBasket, TIFUKNN         what the user took before
    Content                   items by text, categories, numbers and vectors of the item table
    Ranker                    a second stage: trees that order the candidates of several models
    SASRec, GSASRec, ESASRec, GRU4Rec, BERT4Rec, DuoRec, FEARec, BSARec, TiSASRec, TCPSRec,
    TiCoSeRec, LinRec, LRURec, HSTU     neural models (they need torch)
    Blend                     a weighted sum of several models
    MODELS, load, update      model classes by name; a saved model; add rows to a model
    Model, Query, Weights     to write a model of your own
    Gram, tale_gram, slit_gram, slis_gram     sums over pairs of rows, for linear models
Evaluation
    evaluate, evaluate_log, Evaluation     held-out rows ranked among all items
    BasketEvaluation          the result of `evaluate_baskets`: a row per basket
    evaluate_models           several models on one split, compared with the first
    compare, tune             whether B is better than A; the best parameters
Errors
    TalerecError, and under it InvalidLogError, NotFittedError, UnknownIdError

Names are loaded when they are first used: `import talerec` itself loads nothing heavy.
"""

from talerec.exports import lazy_exports

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, "__version__")
