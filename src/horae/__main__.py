"""`python -m horae` is `horae`."""

import sys

from horae.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
