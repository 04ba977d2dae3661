"""Breaks a running server on purpose, to show what happens then.

It exists only in a server that was started by::

    python -m sglang_kvguard.testing.injector.server --control-socket PATH -- ARGUMENTS

and is told what to do through a Unix socket with a secret of the starter's, never by a
request. It works the same on a stock server and on a guarded one: it touches only what
the engine itself owns (page table, free list, pool, arguments of a forward).
"""
