"""The catalogue of the made-up shop: words for its titles, and its categories."""

from __future__ import annotations

import numpy as np
import polars as pl

from talerec import columns
from talerec.runtime.arrays import Array

_OUTDOOR = (
    "Alpine Nordic Summit Granite Cedar Boreal Fjord Canyon Tundra Juniper Larch Basalt",
    "Trail Ridge Drift Pass Ranger Scout Haven Traverse Camp Pioneer Lite Storm",
)
_HOME = (
    "Copper Oak Linen Marble Willow Amber Slate Ivory Walnut Olive Terracotta Ash",
    "Hearth Harbour Cottage Grove Atelier Meadow Loft Manor Orchard Studio Heritage Dune",
)
_ELECTRONIC = (
    "Nova Vector Quanta Lumen Orbit Helix Zenith Pixel Onyx Cobalt Argon Photon",
    "Pulse Prime Edge Core Air Wave Flux Arc Pro Mini Max Neo",
)
_WORDS = 12  # in each of these lists

#: category: (words for its lines, its items in the order in which people come to need them)
CATEGORIES: dict[str, tuple[tuple[str, str], str]] = {
    "Camping": (
        _OUTDOOR,
        "Tent 2P, Footprint, Sleeping Bag, Sleeping Mat, Camp Pillow, Camp Stove, Cook Set, "
        "Lantern, Headlamp, Camp Chair",
    ),
    "Coffee": (
        _HOME,
        "Espresso Machine, Burr Grinder, Tamper, Milk Jug, Espresso Cups, French Press, "
        "Gooseneck Kettle, Pour-Over Dripper, Paper Filters, Coffee Scale",
    ),
    "Photography": (
        _ELECTRONIC,
        "Mirrorless Camera, Prime Lens, UV Filter, Memory Card, Spare Battery, Battery Charger, "
        "Camera Strap, Camera Bag, Tripod, Lens Cleaning Kit",
    ),
    "Hiking": (
        _OUTDOOR,
        "Hiking Boots, Merino Socks, Trekking Poles, Daypack, Rain Cover, Rain Jacket, "
        "Water Filter, Steel Bottle, Gaiters, First Aid Kit",
    ),
    "Kitchen": (
        _HOME,
        "Frying Pan, Saucepan, Dutch Oven, Trivet, Chef's Knife, Cutting Board, Knife Sharpener, "
        "Mixing Bowls, Baking Tray, Oven Mitts",
    ),
    "Audio": (
        _ELECTRONIC,
        "Turntable, Phono Preamp, Bookshelf Speakers, Speaker Cable, Speaker Stands, Headphones, "
        "Headphone Stand, DAC, Record Brush, Record Shelf",
    ),
    "Cycling": (
        _OUTDOOR,
        "Bike Helmet, Bike Lights, Bike Lock, Floor Pump, Tyre Levers, Saddle Bag, "
        "Cycling Gloves, Bottle Cage, Chain Oil, Mudguards",
    ),
    "Bedroom": (
        _HOME,
        "Mattress Topper, Fitted Sheet, Duvet, Duvet Cover, Pillow, Pillowcase, Throw, "
        "Bedside Lamp, Alarm Clock, Blackout Curtain",
    ),
    "Computing": (
        _ELECTRONIC,
        "Laptop, Laptop Sleeve, USB-C Hub, Monitor, Monitor Arm, Keyboard, Mouse, Desk Mat, "
        "Webcam, Laptop Stand",
    ),
    "Climbing": (
        _OUTDOOR,
        "Climbing Shoes, Chalk Bag, Chalk, Harness, Belay Device, Locking Carabiner, Rope 60 m, "
        "Rope Bag, Quickdraws, Climbing Helmet",
    ),
    "Garden": (
        _HOME,
        "Planter, Potting Soil, Hand Trowel, Pruning Shears, Watering Can, Garden Hose, "
        "Hose Reel, Garden Gloves, Bird Feeder, Solar Lights",
    ),
    "Gaming": (
        _ELECTRONIC,
        "Console, Controller, Charging Dock, Headset, Capture Card, Racing Wheel, Wheel Stand, "
        "Gaming Chair, Carry Case, Thumb Grips",
    ),
}


def descriptions(line: Array, kind: Array, starts: Array) -> pl.DataFrame:
    """Titles and categories of items with the ids 1, 2, ...: their lines, and their places in these.

    A category's lines begin at `starts`.
    """
    category = np.searchsorted(starts, line, side="right") - 1
    edition, name = np.divmod(line - starts[category], _WORDS**2)
    second, first = np.divmod(name, _WORDS)
    second = (first + second) % _WORDS  # so that lines born one after the other share no word
    words = [words for words, _ in CATEGORIES.values()]
    parts = pl.DataFrame(
        {
            columns.ITEM: np.arange(1, len(line) + 1),
            "first": _pick([a.split() for a, _ in words], category, first),
            "second": _pick([b.split() for _, b in words], category, second),
            "kind": _pick([k.split(", ") for _, k in CATEGORIES.values()], category, kind),
            "edition": pl.Series(edition + 1),
            "category": pl.Series(list(CATEGORIES)).gather(category),
        }
    )
    title = pl.concat_str("first", "second", "kind", separator=" ")
    later = pl.format("{} Mk {}", title, "edition")
    title = pl.when(pl.col("edition") > 1).then(later).otherwise(title)
    return parts.select(columns.ITEM, title.alias("title"), "category")


def _pick(shelves: list[list[str]], category: Array, place: Array) -> pl.Series:
    """Word `place` of the list of each item's category."""
    flat = pl.Series([word for shelf in shelves for word in shelf])
    return flat.gather(category * len(shelves[0]) + place)
