"""Workloads: traces in and out, cluster descriptions, measured speeds and generated jobs."""
