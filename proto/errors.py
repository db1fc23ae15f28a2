"""The two ways a run ends early, told apart by exit code. Owned by the lowest room so that every room can raise them."""


class InputError(Exception):
    """The input is refused (exit code 2). The message is one line: what, where, both numbers, the nearest legal value."""


class RunError(Exception):
    """The run itself failed: a deadlock, a simulator error (exit code 1)."""
