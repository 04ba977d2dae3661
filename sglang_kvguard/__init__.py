"""Request-scoped KV cache isolation for SGLang."""

__version__ = "0.1.0"


def __getattr__(name: str):
    # Lazily: importing this package must cost neither torch nor SGLang.
    if name == "enable":
        from sglang_kvguard.engine.activation import enable

        return enable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
