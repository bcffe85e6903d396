"""How the jobs of different users are kept apart on one machine: `horae serve --isolation`."""
