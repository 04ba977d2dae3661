"""The alphabet as a Hugging Face tokenizer, for engines that load a model directory."""

from pathlib import Path

from sglang_kvguard.testing.recall import alphabet

# Messages are joined as they are: a chat request then reads exactly what a completion
# request with the same text reads, and no role marker shifts the positions.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def build():
    """A fast tokenizer: byte pair encoding without a single merge."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    pad, bos, eos, unk = alphabet.SPECIALS
    core = Tokenizer(BPE(vocab=alphabet.vocabulary(), merges=[], unk_token=unk))
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        chat_template=CHAT_TEMPLATE,
        # On by default, it eats the space before a full stop.
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def save(directory: Path) -> None:
    """Write the tokenizer files into ``directory``."""
    build().save_pretrained(str(directory))
