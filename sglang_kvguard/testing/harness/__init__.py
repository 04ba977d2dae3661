"""Real servers for tests and demonstrations: start, talk to, stop.

Nothing here imports torch or SGLang; servers are processes of their own.
"""

from sglang_kvguard.testing.harness.client import Client, Reply, Stream
from sglang_kvguard.testing.harness.server import Server, ServerFailed

__all__ = ["Client", "Reply", "Server", "ServerFailed", "Stream"]
