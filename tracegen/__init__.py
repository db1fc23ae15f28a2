"""tracegen: from the description of an LLM job to Chakra execution traces, one per rank, and how long they take."""

__version__ = "0.1.0"
