"""The folded engines of both executions: one rank per cell, collectives by what `prices` says they cost."""
