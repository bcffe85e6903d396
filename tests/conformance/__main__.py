"""Records scenarios that have no recording yet: `python -m tests.conformance`.

A recording is what the code did when it was recorded; tests compare later code against it. To record a scenario
again is to say that what the scheduler does has changed on purpose: name each scenario with `--again NAME`, and give
the reason in the commit message.
"""

from __future__ import annotations

import argparse

from tests.conformance.recorder import record
from tests.conformance.scenarios import SCENARIOS


def main() -> None:
    """Record what is missing, and what was named."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="NAME",
        choices=list(SCENARIOS),
        help="replace the recording of this scenario, because the schedule was changed on purpose; repeatable",
    )
    again = parser.parse_args().again
    for name, scenario in SCENARIOS.items():
        if name in again or not scenario.file.exists():
            record(scenario)
            print(f"recorded {name}: {scenario.file.stat().st_size / 1024:.0f} kB")  # noqa: T201


if __name__ == "__main__":
    main()
