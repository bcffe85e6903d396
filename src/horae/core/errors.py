"""The one error that a user is meant to read."""


class UserError(Exception):
    """The user's mistake, told in one sentence that says what to do next.

    Everything else that escapes is a bug of ours. A misbehaving cluster is
    neither: it is an event.
    """
