"""From traces and a network to a timeline. Knows no LLM and no parallelism."""
