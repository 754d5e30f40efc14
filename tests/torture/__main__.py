"""python -m tests.torture: full counts of simulated histories, kills and flips.

Every option can also come from the environment (PACKAGE, SCENARIO, ROUNDS, SEED, JOBS), which is
how make hands it on.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headwater.testing.torture import STATE_DIR, Scenario, run_scenarios

HERE = Path(__file__).parent


def discover(folder: Path = HERE, package: str = "tests.torture") -> list[Scenario]:
    """The scenarios of all modules whose name ends in `_scenarios`, in the order of the names."""
    found: list[Scenario] = []
    for path in sorted(folder.glob("*_scenarios.py")):
        found += importlib.import_module(f"{package}.{path.stem}").SCENARIOS
    return found


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The options; the environment gives those that the command line does not."""

    def positive(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
        return int(text)

    # A default that is a text is parsed as if it stood on the command line.
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--package", default=environment.get("PACKAGE") or None)
    parser.add_argument("--scenario", default=environment.get("SCENARIO") or None)
    parser.add_argument("--rounds", type=positive, default=environment.get("ROUNDS") or None)
    parser.add_argument(
        "--seed", type=int, default=environment.get("SEED") or None, help="seed of the first round"
    )
    parser.add_argument(
        "--jobs", type=positive, default=environment.get("JOBS") or os.cpu_count() or 1
    )
    parser.add_argument("--fresh", action="store_true", help="forget how far earlier runs came")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run what was asked for; the result is the exit status."""
    options = parse(arguments, environment)
    scenarios = discover()
    if options.list:
        for scenario in scenarios:
            print(f"{scenario}: {scenario.rounds} rounds, sample {scenario.sample}")
        return 0
    return run_scenarios(
        scenarios,
        package=options.package,
        name=options.scenario,
        rounds=options.rounds,
        seed=options.seed,
        jobs=options.jobs,
        fresh=options.fresh,
        state_dir=STATE_DIR,
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
