"""Pure numerics: allocation programs, the auction, matching, the Gittins index, matrix completion. No I/O, no clock."""
