"""Where jobs run: from wishes to GPUs."""

#: Name and meaning of every placement rule.
PLACEMENTS: dict[str, str] = {
    "best-effort": "On the fewest nodes if that is possible now, else spread, one rack before many.",
    "consolidated": "Only on the fewest nodes that could hold the gang; waits for them if it must.",
    "anywhere": "Only the number of GPUs matters: a gang runs at full speed wherever its GPUs are.",
    "least-fragmentation": "Fill the most used nodes first, so that whole nodes stay free for large gangs.",
    "tiresias": "Models that suffer when spread (by skew) as consolidated, all others as least-fragmentation.",
}
