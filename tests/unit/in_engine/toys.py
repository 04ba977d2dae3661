"""Functions to hook, and hooks, for the seam checks."""


class Toy:
    def method(self, a, b):
        return a + b

    @classmethod
    def of(cls, a):
        return a

    @staticmethod
    def plain(a):
        return a


class BetterToy(Toy):
    pass


class Replaced:
    def __init__(self, size):
        self.size = size


class Replacement(Replaced):
    pass


def never_hooked(a):
    return a


def taken_by_another(a):
    return a


def before(*args, **kwargs):
    return None


def after(result, *args, **kwargs):
    return None


def around(original, *args, **kwargs):
    return original(*args, **kwargs)
