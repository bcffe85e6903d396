"""The speed gate of `make test`: fixed workloads beside references, judged by recorded ratios."""
