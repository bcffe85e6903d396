"""Speed and memory of Horae, measured: `make bench`, or `python -m benchmarks --help`."""
