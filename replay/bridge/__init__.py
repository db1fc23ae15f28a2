"""The bridge to the external ASTRA-sim: running it on the same files, reading what it says, comparing."""
