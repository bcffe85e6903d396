"""Pure numerics: exact solvers for allocation problems."""
