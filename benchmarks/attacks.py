"""Attacks that could stop, block or fill a service.

Each attack goes against a fresh `talerec serve` on this machine.

    python benchmarks/attacks.py                       # this checkout
    python benchmarks/attacks.py --other CHECKOUT      # and another one (before), in a table
    python benchmarks/attacks.py --only unread,cp      # some of them

Every attack is bounded in time and size and reports the state of the service in a few words; the
exit code is 1 if an attack harms this checkout. Attacks on HTTP itself (slow headers, bodies
of any length, malformed requests) are tests: `tests/serve/test_service.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import talerec as tr
from attacked import Attack, Outcome, Shop

ATTACKS: dict[str, Attack] = {
    name: attack
    for path in sorted(Path(__file__).parent.glob("attacks_*.py"))
    for name, attack in importlib.import_module(path.stem).ATTACKS.items()
}


def attack(checkout: Path, name: str, models: list[Path]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        shop = Shop(checkout.resolve(), Path(folder), models)
        try:
            return ATTACKS[name][1](shop)
        except Exception as error:
            return Outcome(True, f"{type(error).__name__}: {error}")
        finally:
            for service in shop.running:
                service.end()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="a checkout to attack too")
    parser.add_argument("--only", default=",".join(ATTACKS), help="names of attacks, with commas")
    args = parser.parse_args()
    checkouts = (
        [args.other, Path(__file__).parents[1]] if args.other else [Path(__file__).parents[1]]
    )
    print(
        "| attack |"
        + " before |" * (len(checkouts) - 1)
        + " after |\n|"
        + "---|" * (1 + len(checkouts))
    )
    hurt = False
    with tempfile.TemporaryDirectory() as folder:
        log = tr.synthetic_log(3000, users=300, items=150, seed=3)
        models = [tr.TALE(reg=reg).fit(log).save(Path(folder) / f"{reg}.tale") for reg in (20, 500)]
        for name in args.only.split(","):
            outcomes = [attack(checkout, name, models) for checkout in checkouts]
            hurt |= outcomes[-1].hurt
            print(
                f"| {ATTACKS[name][0]} | "
                + " | ".join(outcome.what for outcome in outcomes)
                + " |",
                flush=True,
            )
    sys.exit(int(hurt))


if __name__ == "__main__":
    main()
