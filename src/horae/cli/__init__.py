"""The command line: one file a command group."""

import time

#: When the program began, as near as it can tell; what `wall_s` counts from.
STARTED_S = time.perf_counter()
