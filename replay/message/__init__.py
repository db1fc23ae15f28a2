"""The exact engine of `astra`: every message simulated, as ASTRA-sim does. Slower and more general than `cells`."""
