"""The two ways a run ends early, told apart by exit code. In the lowest room, so that every room can raise them."""


class InputError(Exception):
    """The input is refused (exit code 2). One line says what, where, both numbers and the nearest legal value."""


class RunError(Exception):
    """The run itself failed: a deadlock, a simulator error (exit code 1)."""
