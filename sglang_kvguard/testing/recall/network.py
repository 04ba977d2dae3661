"""The recall model's shape and the weights it starts from."""

import math
from pathlib import Path

from sglang_kvguard.testing.recall import alphabet, tokenizer

LAYERS = 3
HEADS = 8
KV_HEADS = 2
HEAD_DIM = 32
ROTARY_SHARE = 0.5
ROPE_THETA = 10000.0

# Heads that start out looking a fixed number of positions back: layer -> (heads, offsets).
# Copying a value needs heads that fetch the text just before a position; left to chance
# they often do not form at this size, and training stops two thirds of the way.
_LOOK_BACK = {
    0: (range(HEADS), (1, 2, 3, 4, 5, 6, 7, 1)),
    1: (range(HEADS // KV_HEADS), (1, 2, 4, 6)),
}
_LOOK_BACK_SIZE = 6.0
_POST_NORM_GAIN = 0.5


def config():
    """A Glm4 configuration of about 430,000 parameters."""
    from transformers import Glm4Config

    return Glm4Config(
        vocab_size=alphabet.VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": ROPE_THETA,
            "partial_rotary_factor": ROTARY_SHARE,
        },
        attention_bias=True,
        tie_word_embeddings=False,
        pad_token_id=alphabet.PAD,
        bos_token_id=alphabet.BOS,
        eos_token_id=alphabet.EOS,
        dtype="float32",
    )


def build(seed: int):
    """A fresh model, ready to be trained."""
    import torch
    from transformers import Glm4ForCausalLM

    torch.manual_seed(seed)
    model = Glm4ForCausalLM(config())
    with torch.no_grad():
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
        for layer in model.model.layers:
            # GLM-4 normalises what each sublayer adds to the stream; at gain one,
            # six of them drown the token's own embedding.
            layer.post_self_attn_layernorm.weight.fill_(_POST_NORM_GAIN)
            layer.post_mlp_layernorm.weight.fill_(_POST_NORM_GAIN)
        for index, (heads, offsets) in _LOOK_BACK.items():
            for head, offset in zip(heads, offsets, strict=True):
                _look_back(model.model.layers[index].self_attn, head, offset)
    return model


def _look_back(attention, head: int, offset: int) -> None:
    """Bias ``head`` towards the token ``offset`` positions before its own.

    Rotation turns component pair f of a query at position m and of a key at n by their
    positions times an angle a(f), so the score of two constant vectors depends on m - n
    only. With the key at angle 0 and the query at -offset * a(f) all pairs agree best
    where m - n is the offset.
    """
    pairs = int(HEAD_DIM * ROTARY_SHARE) // 2
    query = attention.q_proj.bias[head * HEAD_DIM : (head + 1) * HEAD_DIM]
    kv_head = head // (HEADS // KV_HEADS)
    key = attention.k_proj.bias[kv_head * HEAD_DIM : (kv_head + 1) * HEAD_DIM]
    for pair in range(pairs):
        angle = -offset * ROPE_THETA ** (-pair / pairs)
        query[2 * pair] = _LOOK_BACK_SIZE * math.cos(angle)
        query[2 * pair + 1] = _LOOK_BACK_SIZE * math.sin(angle)
        key[2 * pair] = _LOOK_BACK_SIZE
        key[2 * pair + 1] = 0.0


def save(model, directory: Path) -> None:
    """Write a model directory an engine can load."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(directory))
    # The weights are written readable by their owner alone; a server may be somebody else.
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save(directory)
