"""The error of a setting, in a module of its own because every module with a setting raises it."""


class PolicyError(ValueError):
    """A setting of the guard is wrong; the message is one line that names the flag."""
