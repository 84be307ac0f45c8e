"""Blends: what is stacked is what the parts give, and what does not help counts nothing."""

from __future__ import annotations

import numpy as np
import pytest
from test_learning import chain_log, repeat_log

import command
import talerec as tr
from talerec.errors import TalerecError
from talerec.models import MODELS
from talerec.models.blend import fit_part, fit_parts
from talerec.models.blend import parts as blend_parts
from talerec.models.core import split_holdout
from talerec.models.ranker.parts import build_parts

SINGLE = ["tempo", "tale", "ease", "sknn", "stan", "markov", "popular", "trending", "fpmc", "swalk"]


@pytest.mark.parametrize("name", SINGLE)
def test_a_blend_of_one_part_gives_its_scores_to_the_last_bit(name):
    log = tr.synthetic_log(1500, seed=2)
    users = log.users.ids[:60]
    alone, blend = MODELS[name]().fit(log), tr.Blend(parts=name).fit(log)
    for hide in (False, True):
        expected = alone.recommend(users, k=10, hide_seen=hide)
        assert blend.recommend(users, k=10, hide_seen=hide).equals(expected)
    histories = [[log.items.ids[1]], log.items.ids[:4].to_list(), []]
    assert blend.recommend_histories(histories, k=5).equals(
        alone.recommend_histories(histories, k=5)
    )


def scores_of(model, histories, items):
    """The score of every item (0 for none), history by history."""
    ranked = model.recommend_histories(histories, k=items)
    scores = np.zeros((len(histories), items))
    position = {item: at for at, item in enumerate(model.item_ids)}
    for history, item, score in ranked.select("history", "item_id", "score").iter_rows():
        scores[history, position[item]] = score
    return scores


def test_scores_are_the_weighted_sum_of_the_parts_scores():
    log = tr.synthetic_log(1500, seed=3)
    names, weights = ["tempo", "ease", "popular", "sknn", "fpmc"], [1.0, 0.25, 1e-4, 0.125, 0.03125]
    blend = tr.Blend(parts=",".join(names), weights_of_parts=",".join(map(str, weights))).fit(log)
    histories = [log.items.ids[:3].to_list(), log.items.ids[5:9].to_list()]
    n = len(log.items)
    expected = sum(
        weight * scores_of(MODELS[name]().fit(log), histories, n)
        for name, weight in zip(names, weights, strict=True)
    )
    np.testing.assert_allclose(scores_of(blend, histories, n), expected, rtol=1e-9, atol=1e-9)


def test_an_item_has_a_score_if_any_part_gives_it_one():
    log = tr.synthetic_log(1500, seed=3)
    blend = tr.Blend(parts="markov,popular", weights_of_parts="1,0.001").fit(log)
    lone = tr.Markov().fit(log)
    history = [log.items.ids[:1].to_list()]
    assert len(lone.recommend_histories(history, k=50)) < 50
    assert len(blend.recommend_histories(history, k=50)) == 50


def test_contributions_and_the_base_score_add_up_to_the_score():
    log = tr.synthetic_log(1500, seed=3)
    blend = tr.Blend(parts="tempo,sknn,popular", weights_of_parts="1,0.3,0.001").fit(log)
    history = log.items.ids[:4].to_list()
    for item, score in (
        blend.recommend_histories([history], k=5).select("item_id", "score").iter_rows()
    ):
        explanation = blend.explain(history, item)
        assert explanation["item_id"].null_count() == 1
        assert explanation["contribution"].sum() == pytest.approx(score, rel=1e-9)


def test_a_saved_blend_recommends_the_same_after_loading(tmp_path):
    log = tr.synthetic_log(1500, seed=3)
    blend = tr.Blend(
        parts="tempo,ease(reg=50; recency=3),popular", weights_of_parts="1,0.3,0.01"
    ).fit(log)
    reloaded = tr.load(blend.save(tmp_path / "b.tale"), verify=True)
    users = log.users.ids[:40]
    assert reloaded.recommend(users, k=10).equals(blend.recommend(users, k=10))
    history = log.items.ids[:4].to_list()
    item = log.items.ids[9]
    assert reloaded.explain(history, item).equals(blend.explain(history, item))
    assert reloaded.describe_learned() == blend.describe_learned()


def test_a_part_that_does_not_help_has_weight_0_and_is_not_stored():
    log = chain_log()
    blend = tr.Blend(parts="markov(recency=0.1),popular").fit(log)
    assert blend.part_weights.tolist() == [1.0, 0.0]
    assert len(blend.fitted.weights.blocks) == 1
    assert blend.fitted.weights.base is None
    assert "popular has weight 0: it does not improve the ranking." in blend.describe_learned()


def half_chain_log():
    """Every second row follows from the last item; the others are one of forty popular items."""
    favourites = lambda draw, _: min(draw.geometric(0.1), 40)  # noqa: E731
    return chain_log(900, 4000, 9, seed=8, otherwise=favourites)


def test_two_complementary_parts_are_better_than_either():
    split = tr.leave_one_out(half_chain_log())
    blend = tr.Blend(parts="markov(recency=0.2),popular").fit(split.train)
    assert (blend.part_weights > 0).all()
    alone = [tr.Markov(recency=0.2).fit(split.train), tr.Popular().fit(split.train)]
    reached = [tr.evaluate(model, split).metrics["NDCG@10"] for model in (blend, *alone)]
    assert reached[0] > max(reached[1:])


def test_a_log_too_small_to_learn_from_uses_the_first_part_and_reports_it():
    log = tr.synthetic_log(150, seed=1)
    blend = tr.Blend(parts="ease,tempo").fit(log)
    assert blend.part_weights.tolist() == [1.0, 0.0]
    assert blend.describe_learned()[0] == (
        "The log is too small to learn weights of parts: only ease is used."
    )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("tempo,nothing", "nothing"),
        ("blend", "blend"),
        ("", "names of models"),
        ("tempo,", "names of models"),
        ("tempo ease", "names of models"),
        ("tempo,ease(reg=)", "name=value"),
        ("tempo,ease(regg=3)", "regg"),
        ("tempo,ease(reg=3", "names of models"),
    ],
)
def test_unknown_parts_are_named(parts, said):
    if parts == "tempo,":
        assert [name for name, _ in blend_parts.parse_parts(parts)] == ["tempo"]
        return
    with pytest.raises(TalerecError, match=said):
        tr.Blend(parts=parts)


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,x", "0,0", "1,nan", "1,inf", ""])
def test_weights_that_do_not_fit_the_parts_are_refused(weights):
    with pytest.raises(TalerecError, match="weights_of_parts"):
        tr.Blend(parts="tempo,ease", weights_of_parts=weights)


def test_a_part_that_cannot_be_fitted_is_named():
    blend = tr.Blend(parts="tempo,ease(memory=0.0000001)", weights_of_parts="1,1")
    with pytest.raises(TalerecError, match="ease, a part of the blend, cannot be fitted"):
        blend.fit(tr.synthetic_log(3000, items=2500, seed=1))


def test_held_out_queries_of_a_blend_cover_all_items():
    log = repeat_log(users=300)
    assert split_holdout(log, every_item=True).target_mask.all()


def test_the_command_fits_and_shows_what_was_learned(tmp_path):
    log, out = tmp_path / "log.csv", tmp_path / "b.tale"
    chain_log(users=400).to_frame().write_csv(log)
    shown = command.works(
        "fit", log, "-o", out, "--model", "blend", "--set", "parts=markov,popular"
    )
    assert "popular has weight" in shown
    assert command.talerec("recommend", out, "--users", "1", "--json").json


def test_parts_that_share_steps_of_their_fits_have_the_weights_of_fits_of_their_own():
    log = tr.synthetic_log(6000, items=120, users=300, seed=2)
    names = "tempo,slist,swalk,ease,rdlae,slis,tale"
    apart = [fit_part(part, log) for part in build_parts(names)]
    together = fit_parts(build_parts(names), log, "ranker")
    for a, b in zip(apart, together, strict=True):
        ours, theirs = (model.fitted.weights.stored()[1] for model in (a, b))
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in ours)
