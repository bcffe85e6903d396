"""What a sweep measures unless somebody says otherwise."""

#: Gavel's steady state: the jobs that are measured.
MEASURE_FROM, MEASURE_TO = 4000, 5000

#: Jobs keep coming while measured ones are there, and the slowest of these may take months: so many for each.
MORE_JOBS = 4
