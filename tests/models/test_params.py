"""Hyper-parameters: what they take, and what is said of what they do not take."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.base import clone

import talerec as tr
from logs import tiny_log
from talerec.errors import TalerecError
from talerec.models import DEFAULT, MODELS
from talerec.models.core import (
    SCORE,
    accept_former_names,
    add_former_names,
    build_model,
    describe_params,
    param,
    parse_settings,
)
from talerec.models.core.params import HasParams


@dataclass
class Sample(HasParams):
    """Something with parameters.

    It has a second paragraph.

    Examples
    --------
    >>> Sample().count
    3
    """

    name: ClassVar[str] = "sample"
    weight: float = param(1.0, "any weight")
    share: float = param(0.5, "a share", low=0, high=1)
    days: float = param(2.0, "days", above=0)
    count: int = param(3, "how many", low=1)
    side: str = param("left", "where", choices=("left", "right"), stage=SCORE)
    forgotten: ClassVar[int] = 0

    def _forget_fit(self) -> None:
        type(self).forgotten += 1


@dataclass
class Bare:
    name: ClassVar[str] = "bare"


def refusal(**values: object) -> str:
    with pytest.raises(TalerecError) as caught:
        Sample(**values)
    return str(caught.value)


def parsed(*settings: str) -> dict[str, object]:
    return parse_settings(Sample, settings)


# -- check -----------------------------------------------------------------------------------------


def test_whole_numbers_become_floats_where_those_are_meant() -> None:
    sample = Sample(weight=4, share=np.int64(1), days=Fraction(1, 2))
    assert [sample.weight, sample.share, sample.days] == [4.0, 1.0, 0.5]
    assert all(type(value) is float for value in (sample.weight, sample.share, sample.days))


def test_floats_that_are_whole_become_integers_where_those_are_meant() -> None:
    sample = Sample(count=np.float32(7))
    assert sample.count == 7
    assert type(sample.count) is int


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 1.5}, "share is 1.5; it must be from 0 to 1"),
        ({"share": -0.1}, "share is -0.1; it must be from 0 to 1"),
        ({"days": 0}, "days is 0; it must be above 0"),
        ({"days": -math.inf}, "days is -inf; it must be above 0"),
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"count": 2.5}, "count is 2.5; it takes a whole number"),
        ({"count": math.inf}, "count is inf; it must be at most 2147483647"),
        ({"count": -math.inf}, "count is -inf; it takes a whole number"),
        ({"count": 1e30}, "count is 1e+30; it must be at most 2147483647"),
        ({"side": "up"}, "side is 'up'; it takes left or right"),
        ({"side": 3}, "side is 3; it takes left or right"),
        ({"weight": math.nan}, "weight is nan; it takes a number"),
        ({"weight": np.float64("nan")}, "it takes a number"),
        ({"weight": "2"}, "weight is '2'; it takes a number"),
        ({"weight": True}, "weight is True; it takes a number"),
        ({"weight": None}, "weight is None; it takes a number"),
        ({"weight": [1.0]}, "weight is [1.0]; it takes a number"),
        ({"weight": np.array([1.0, 2.0])}, "it takes a number"),
        ({"weight": Decimal("NaN")}, "it takes a number"),
        ({"weight": 1j}, "weight is 1j; it takes a number"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(
    values: dict[str, object], message: str
) -> None:
    assert message in refusal(**values)


def test_infinity_is_a_number_where_nothing_forbids_it() -> None:
    assert Sample(days=math.inf).days == math.inf


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300))
def test_what_is_allowed_is_kept_to_the_last_bit(value: float) -> None:
    assert Sample(days=value).days == value


ANYTHING = st.one_of(
    st.floats(),
    st.floats(-2, 2),
    st.integers(),
    st.integers(-2, 5),
    st.text(),
    st.sampled_from(["left", "right"]),
    st.booleans(),
    st.none(),
)


def stored_value(name: str, value: object) -> object:
    """What a parameter of Sample keeps of a value, said once more; None where it is refused."""
    if name == "side":
        return value if value in ("left", "right") else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    allowed = {
        "weight": value in (math.inf, -math.inf) or abs(value) <= sys.float_info.max,
        "share": 0 <= value <= 1,
        "days": 0 < value <= sys.float_info.max or value == math.inf,
        "count": 1 <= value < 2**31 and value % 1 == 0,
    }
    if not allowed[name]:
        return None
    return int(value) if name == "count" else float(value)


@given(st.sampled_from(["weight", "share", "days", "count", "side"]), ANYTHING)
@example("weight", 10**400)
@example("days", 10**5000)
@example("count", -(10**400))
@example("count", 2**31)
@example("count", 2**31 - 1)
@example("count", 3.0)
@example("share", -0.0)
@example("side", b"left")
def test_any_value_is_kept_as_it_should_be_or_refused_by_name(name: str, value: object) -> None:
    expected = stored_value(name, value)
    if expected is None:
        assert refusal(**{name: value}).startswith(f"{name} is ")
        return
    value_set = getattr(Sample(**{name: value}), name)
    assert value_set == expected
    assert type(value_set) is type(expected)


# -- parse -----------------------------------------------------------------------------------------


def test_settings_are_read_as_written() -> None:
    assert parsed("weight=1/512", "share=.25", "days=inf", "count=12", "side=right") == {
        "weight": 1 / 512,
        "share": 0.25,
        "days": math.inf,
        "count": 12,
        "side": "right",
    }


def test_spaces_around_name_and_value_do_not_matter() -> None:
    assert parsed(" weight = 1e-3 ", "side= left") == {"weight": 1e-3, "side": "left"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("weight", "`set` takes name=value, not 'weight'"),
        ("=3", "`set` takes name=value, not '=3'"),
        ("weight=", "`set` takes name=value, not 'weight='"),
        ("", "`set` takes name=value, not ''"),
        ("wait=3", "sample has no parameter 'wait'; its parameters are weight, share, days,"),
        ("name=3", "sample has no parameter 'name'"),
        ("weigth=3", "sample has no parameter 'weigth'; did you mean 'weight'?"),
        ("weight=heavy", "weight is 'heavy'; it takes a number such as 0.5 or 1/512"),
        ("weight=1/0", "weight is '1/0'; it takes a number"),
        ("weight=1/2/3", "weight is '1/2/3'; it takes a number"),
        (f"weight={10**400}/3", "it takes a number"),
        ("weight=0x10", "weight is '0x10'; it takes a number"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(TalerecError) as caught:
        parsed(setting)
    assert message in str(caught.value)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(TalerecError, match="`set` gives weight twice"):
        parsed("weight=1", "weight=2")


def test_a_model_without_parameters_says_so() -> None:
    with pytest.raises(TalerecError, match="bare has no parameter 'reg'; it has none"):
        parse_settings(Bare, ["reg=1"])


def test_not_a_number_passes_the_reader_and_is_refused_by_the_model() -> None:
    with pytest.raises(TalerecError, match="weight is nan; it takes a number"):
        Sample(**parsed("weight=nan"))


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_fractions_are_the_nearest_double(a: int, b: int) -> None:
    assert parsed(f"weight={a}/{b}") == {"weight": a / b}


@given(st.floats(allow_nan=False))
def test_numbers_come_back_as_python_writes_them(value: float) -> None:
    assert parsed(f"weight={value!r}") == {"weight": value}


# -- build and describe ----------------------------------------------------------------------------


def test_build_makes_a_model_or_names_the_parameter_that_it_does_not_have() -> None:
    assert build_model(Sample, {"count": 5}).count == 5
    with pytest.raises(TalerecError, match="sample has no parameter 'size'"):
        build_model(Sample, {"size": 5})


def test_description_says_default_meaning_and_range() -> None:
    takes = {row["name"]: row["takes"] for row in describe_params(Sample)}
    assert takes == {
        "weight": "any",
        "share": "from 0 to 1",
        "days": "above 0",
        "count": "at least 1",
        "side": "left or right",
    }


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_describes_its_parameters_and_accepts_its_defaults(name: str) -> None:
    kind = MODELS[name]
    described = describe_params(kind)
    assert all(row["help"] for row in described)
    settings = [f"{row['name']}={row['default']}" for row in described]
    assert build_model(kind, parse_settings(kind, settings)).params == kind().params


def test_tempo_is_the_default_and_stands_first() -> None:
    assert next(iter(MODELS)) == DEFAULT == "tempo"


# -- get and set -----------------------------------------------------------------------------------


def test_parameters_are_given_by_name() -> None:
    expected = {"weight": 1.0, "share": 0.25, "days": 2.0, "count": 3, "side": "left"}
    sample = Sample(share=0.25)
    assert sample.get_params() == sample.get_params(deep=False) == sample.params == expected


def test_parameters_are_set_and_checked_as_when_a_model_is_made() -> None:
    sample = Sample()
    assert sample.set_params(weight=4, count=7.0) is sample
    assert sample == Sample(weight=4.0, count=7)
    assert type(sample.weight) is float
    assert type(sample.count) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 2.0, "wait": 3}, "sample has no parameter 'wait'; its parameters are weight,"),
        ({"weight": 2.0, "share": 3}, "share is 3; it must be from 0 to 1"),
        ({"weight": 2.0, "side": "up"}, "side is 'up'; it takes left or right"),
        ({"weight": 2.0, "name": "x"}, "sample has no parameter 'name'"),
    ],
)
def test_a_change_that_is_not_allowed_is_refused_by_name_and_changes_nothing(
    changes: dict[str, object], message: str
) -> None:
    sample = Sample()
    with pytest.raises(TalerecError) as caught:
        sample.set_params(**changes)
    assert message in str(caught.value)
    assert sample == Sample()


@pytest.mark.parametrize(
    ("changes", "forgotten"),
    [({}, 0), ({"side": "right"}, 0), ({"weight": 1}, 0), ({"side": "right", "weight": 2}, 1)],
)
def test_a_fit_is_forgotten_where_a_change_would_have_changed_it(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], forgotten: int
) -> None:
    monkeypatch.setattr(Sample, "forgotten", 0)
    Sample().set_params(**changes)
    assert Sample.forgotten == forgotten


def test_a_fitted_model_keeps_its_fit_for_other_queries_alone() -> None:
    log = tiny_log([(u, i, 1e9 + i) for u in range(4) for i in range(3)])
    model = tr.TALE(recency=1.0).fit(log)
    lists = model.set_params(recency=5.0).recommend([1], k=3)
    assert lists.equals(tr.TALE(recency=5.0).fit(log).recommend([1], k=3))
    with pytest.raises(tr.NotFittedError):
        model.set_params(reg=5).recommend([1], k=3)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_scikit_learn_clones_every_model(name: str) -> None:
    kind = MODELS[name]
    changes = {"reg": 0.75} if "reg" in kind().params else {}
    sample = kind(**changes)
    copy = clone(sample)
    assert type(copy) is kind
    assert copy is not sample
    assert copy.params == sample.params


# -- docstrings ------------------------------------------------------------------------------------


def test_the_docstring_lists_the_parameters_before_the_examples() -> None:
    assert (
        Sample.__doc__
        == """Something with parameters.

It has a second paragraph.

Parameters
----------
weight : float, default 1.0
    Any weight.
share : float, default 0.5
    A share. From 0 to 1.
days : float, default 2.0
    Days. Above 0.
count : int, default 3
    How many. At least 1.
side : {'left', 'right'}, default 'left'
    Where.

Examples
--------
>>> Sample().count
3"""
    )


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_lists_all_of_its_parameters(name: str) -> None:
    kind = MODELS[name]
    _, heading, listed = (kind.__doc__ or "").partition("\n\nParameters\n----------\n")
    listed = listed.partition("\n\n")[0]
    names = [line.split(" : ")[0] for line in listed.splitlines() if not line.startswith(" ")]
    assert names == [row["name"] for row in describe_params(kind)]
    assert bool(heading) == bool(names)
    for row in describe_params(kind):
        assert f", default {row['default']!r}\n    {row['help'][0].upper()}" in listed


# -- former names ----------------------------------------------------------------------------------


@accept_former_names
@dataclass
class Renamed(HasParams):
    """Something with a parameter that had another name."""

    name: ClassVar[str] = "renamed"
    popularity_weight: float = param(1.0, "a weight", low=0, former="now", stage=SCORE)
    reg: float = param(2.0, "a penalty")


def test_a_former_name_of_a_parameter_works_in_python_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="now is now popularity_weight") as caught:
        sample = Renamed(now=3)
    assert caught[0].filename == __file__
    assert sample.params == {"popularity_weight": 3.0, "reg": 2.0}
    with pytest.warns(DeprecationWarning, match="goes with version 0.4"):
        assert sample.now == 3.0
    with pytest.warns(DeprecationWarning, match="now"):
        sample.set_params(now=4)
    assert sample.popularity_weight == 4.0
    with pytest.warns(DeprecationWarning, match="now"):
        sample.now = 5.0
    assert sample.popularity_weight == 5.0
    refused = pytest.raises(TalerecError, match=r"now is 'x'|popularity_weight is 'x'")
    with refused, pytest.warns(DeprecationWarning, match="now"):
        Renamed(now="x")


@pytest.mark.filterwarnings("error")
def test_a_former_name_in_settings_and_files_needs_no_warning() -> None:
    assert parse_settings(Renamed, ["now=3", "reg=1"]) == {"popularity_weight": 3.0, "reg": 1.0}
    assert build_model(Renamed, {"now": 3}).popularity_weight == 3.0
    assert build_model(Renamed, {"now": 3, "popularity_weight": 3}).popularity_weight == 3.0
    with pytest.raises(TalerecError, match="now is the former name of popularity_weight"):
        build_model(Renamed, {"now": 3, "popularity_weight": 4})
    with pytest.raises(TalerecError, match="gives popularity_weight twice"):
        parse_settings(Renamed, ["now=3", "popularity_weight=3"])


def test_json_has_parameters_under_former_names_too() -> None:
    assert add_former_names(Renamed, Renamed().params) == {
        "popularity_weight": 1.0, "reg": 2.0, "now": 1.0,
    }  # fmt: skip
