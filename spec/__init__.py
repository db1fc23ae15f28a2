"""What a user writes: typed, validated, units resolved; and the catalogue. Knows no graphs and no time."""
