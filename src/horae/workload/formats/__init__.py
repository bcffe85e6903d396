"""The trace formats Horae reads, one file each; `horae.workload.traces` chooses among them."""
