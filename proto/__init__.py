"""The Chakra ET format: its schema, traces as arrays, bytes to arrays and back. Knows no LLM, network or spec."""
