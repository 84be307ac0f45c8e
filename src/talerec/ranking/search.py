"""Ranking with `HashScores`, for large catalogues, with a search that stops early.

Sources come newest first, with smaller and smaller shares. At times the search checks which items
the remaining sources could still lift into the top k; if that is cheaper, it adds the remaining
rows to these items alone. Scores are those of the whole query to the last bit, since the additions
are the same, in the same order.
"""

from __future__ import annotations

import numpy as np

from talerec.ranking.block_records import (
    IDENTITY,
    SPARSE,
    Blocks,
    find_block,
    row_length,
    sparse_rows,
)
from talerec.ranking.ranks import (
    Mask,
    QueryArrays,
    Ranked,
    RankScratch,
    ScanState,
    ScoredTarget,
    any_reaches,
    begin_scan,
    borrow_mask,
    borrow_query,
    count_seen_above,
    find_target,
    mark_seen,
    scan_item,
    write_ranks,
)
from talerec.ranking.scores import (
    HashScores,
    KernelWeights,
    add_to_hash,
    borrow_hash,
    clear_hash,
    get_hash,
    hash_size,
)
from talerec.ranking.top_k import ItemFlags, TopK, is_listable, sort_top_k
from talerec.runtime import Array, borrow, float32_at, kernel, template

_FIRST_CHECK = 2.0**-6  # of the query's bound: the first check is when the rest can add no more,
_NEXT_CHECK = 2.0**-2  # and the next one when it can add only so much of the last check's rest
_LOOKUP_COST = 8  # of one weight by its item, in weights that are added in a row
_ROUNDING = 1 + 1e-9  # bounds are sums of rounded numbers
_SPAN = 64  # scores that are compared with the threshold at a time


@kernel
def rank_with_hash_scores(
    weights: KernelWeights,
    query: QueryArrays,
    mask: Mask,
    targets: Array,
    scratch: RankScratch,
    a: int,
    b: int,
    out: Ranked,
) -> None:
    """Write the top k items of queries a..b, and ranks of `targets` if not empty, into `out`.

    weights, query: B (source x item) and rows x; a query's scores, x @ B, are kept in a hash table
    of the scored items. mask: the items that a list must not contain. targets: an item per query,
    -1 for none. scratch: the thread's work space, clear before and after. Without targets the
    search may stop early; no block of B is dense, and there are no base scores.
    """
    blocks, query, mask = borrow(weights.blocks), borrow_query(query), borrow_mask(mask)
    store, seen = borrow_hash(scratch.store), borrow(scratch.seen)
    flags = ItemFlags(mask.allowed, seen[: len(seen) if mask.hide_seen else 0])
    for q in range(a, b):
        sources = query.source[query.ptr[q] : query.ptr[q + 1]]
        shares = query.share[query.ptr[q] : query.ptr[q + 1]]
        top = TopK(borrow(out.items[q]), borrow(out.scores[q]))
        if mask.hide_seen or len(targets):
            mark_seen(mask, q, seen, 1)
        if len(targets) == 0 and _has_bounds(blocks):
            size = _search(blocks, sources, shares, store, flags, top)
        else:
            for x in range(len(sources)):
                add_source(blocks, sources[x : x + 1], shares[x : x + 1], store)
            size = hash_size(store)
        target = find_target(get_hash, store, flags, targets[q] if len(targets) else -1)
        seen_above = 0
        if len(targets):
            seen_above = count_seen_above(get_hash, store, target, mask, q, seen)
        state = _scan_scores(store, size, target, top, flags)
        out.counts[q] = sort_top_k(top, state.size)
        if len(targets):
            write_ranks(out.ranks[q], target, state.above, state.above - seen_above, seen)
        clear_hash(store)
        if mask.hide_seen or len(targets):
            mark_seen(mask, q, seen, 0)


@template
def _has_bounds(blocks: Blocks) -> bool:
    """Return whether all blocks are sparse or identity, so that a search can stop early.

    A block is some rows of the weights B. Rows of these blocks have a known largest weight, which
    bounds what a source (row) adds to any score.
    """
    bounded = True
    for b in range(len(blocks)):
        bounded = bounded and (blocks[b].kind == SPARSE or blocks[b].kind == IDENTITY)
    return bounded


@template
def add_source(blocks: Blocks, source: Array, share: Array, store: HashScores) -> None:
    """Add a source's row of the weights B, times its share, to the scores of a hash table.

    source, share: arrays of one entry; the source is numbered through all blocks of B. blocks: a
    record per block.
    """
    b = find_block(blocks, source[0])
    length = row_length(blocks, b, source[0] - blocks[b].first, len(store.items))
    add_to_hash(store, blocks, b, source, share, length)


@template
def _scan_scores(
    store: HashScores, size: int, target: ScoredTarget, top: TopK, flags: ItemFlags
) -> ScanState:
    """Put the store's first `size` items into `top`, and rank the target; return the state.

    store: a hash table of items and scores. The state says how many items rank before the target,
    and how many of the top k are filled. flags: the items that may be ranked and listed.
    """
    items, scores, state = store.items, store.scores, begin_scan(target, top)
    for start in range(0, size, _SPAN):
        stop = min(start + _SPAN, size)
        if any_reaches(scores, start, stop, state.threshold):
            for c in range(start, stop):
                if scores[c] >= state.threshold:
                    state = scan_item(state, items[c], scores[c], target, top, flags)
    return state


# -- stopping early --------------------------------------------------------------------------------


@template
def _search(
    blocks: Blocks, sources: Array, shares: Array, store: HashScores, flags: ItemFlags, top: TopK
) -> int:
    """Add sources until the top k are certain to be among a few items, which get the rest.

    blocks: the weights B. sources: numbers of rows of B, with shares that multiply them. store: a
    hash table of scores, empty on entry. flags: the items that may be listed. Returns the
    number of items kept at the front of the store, with complete scores. `top` is scratch here: the
    caller ranks the kept items.
    """
    rest, work = _bound_remaining(blocks, sources, shares, len(store.items))
    check = rest[0] * _FIRST_CHECK
    for x in range(len(sources)):
        if rest[x] < check and work[x] > hash_size(store):
            check = rest[x] * _NEXT_CHECK
            limit = work[x] // (_LOOKUP_COST * (len(sources) - x))
            n_kept = _keep_possible(store, flags, rest[x] * _ROUNDING, top, limit)
            if n_kept > 0:
                for c in range(n_kept):
                    for y in range(x, len(sources)):
                        store.scores[c] += _get_contribution(
                            blocks, sources[y], shares[y], store.items[c]
                        )
                return n_kept
        add_source(blocks, sources[x : x + 1], shares[x : x + 1], store)
    return hash_size(store)


@template
def _bound_remaining(
    blocks: Blocks, sources: Array, shares: Array, items: int
) -> tuple[Array, Array]:
    """Return (rest, work) before each source: what it and the later ones can still add.

    A source is a row of the weights B (`blocks`), multiplied by its share. rest: the most that the
    score of any item can change; work: the number of weights to read. Both have a last entry of 0.
    items: the number of items.
    """
    rest, work = np.zeros(len(sources) + 1), np.zeros(len(sources) + 1, np.int64)
    for x in range(len(sources) - 1, -1, -1):
        b = find_block(blocks, sources[x])
        s = sources[x] - blocks[b].first
        peak = 1.0 if blocks[b].kind == IDENTITY else float32_at(blocks[b].peaks, s + 1)[s]
        rest[x] = rest[x + 1] + abs(shares[x] * blocks[b].weight) * peak
        work[x] = work[x + 1] + row_length(blocks, b, s, items)
    return rest, work


@template
def _keep_possible(store: HashScores, flags: ItemFlags, rest: float, top: TopK, limit: int) -> int:
    """Keep only the items that may be in the top k after any score changes by up to `rest`.

    store: a hash table of items and scores so far; flags: the items that may be listed. The items
    that stay move to its front; `top` is overwritten. Returns their number; 0, with the store
    unchanged, if they are more than `limit`, or if an item without a score might enter. The table's
    slots are wrong afterwards: nothing may be added by item.
    """
    items, scores, size, k = store.items, store.scores, hash_size(store), len(top.items)
    no_target = ScoredTarget(-1, np.inf)
    listed = sort_top_k(top, _scan_scores(store, size, no_target, top, flags).size)
    if listed < k or top.scores[k - 1] - rest <= rest:
        return 0
    threshold, n_kept = top.scores[k - 1] - 2 * rest, 0
    for c in range(size):
        n_kept += scores[c] >= threshold
    if n_kept > limit:
        return 0
    n_kept = 0
    for c in range(size):
        if scores[c] >= threshold and is_listable(flags, items[c]):
            items[n_kept], scores[n_kept] = items[c], scores[c]
            n_kept += 1
    return n_kept


@template
def _get_contribution(blocks: Blocks, source: int, share: float, j: int) -> float:
    """Return what a source (row of the weights B, times share) adds to the score of item j.

    blocks: the weights B. The source is in a sparse or an identity block; sources are numbered
    through all blocks.
    """
    b = find_block(blocks, source)
    s = source - blocks[b].first
    if blocks[b].kind == IDENTITY:
        return share * blocks[b].weight if s == j else 0.0
    rows = sparse_rows(blocks, b)
    e = _find_in_row(rows.indices, rows.indptr[s], rows.indptr[s + 1], j)
    return share * blocks[b].weight * rows.values[e] if e >= 0 else 0.0


@template
def _find_in_row(indices: Array, low: int, high: int, j: int) -> int:
    """Return the position of j in the ascending indices[low:high], -1 if it is not there.

    A binary search without a branch that depends on the data.
    """
    if low == high:
        return -1
    size = high - low
    while size > 1:
        middle = size >> 1
        low += middle * (indices[np.uint64(low + middle)] <= j)
        size -= middle
    return low if indices[low] == j else -1
