"""A model small enough to ship that repeats secrets from its prompt.

A leak between requests is a few wrong bytes deep inside a tensor. This model turns it
into text: a prompt plants ``bob=4711;`` and asks ``?bob=``, and the greedy answer is
``4711;``. The answer is written nowhere but in the KV cache of that prompt, so a reply
that carries somebody else's digits is a leak, and one that carries wrong digits is a
corrupted cache.
"""

from pathlib import Path

MODEL = Path(__file__).parent / "model"
"""The trained model, a Hugging Face model directory."""
