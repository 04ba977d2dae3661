"""A tiny mixture-of-experts GLM with random weights, made when it is needed.

It says nothing sensible; it is there because GLM-4.5 to 4.7 are mixture-of-experts models
and take other code paths through the engine than the recall model does. Its greedy output
is a fixed function of every byte of KV it reads, which is what fault tests compare.
"""

import json
from pathlib import Path

from sglang_kvguard.testing.recall import alphabet, tokenizer

LAYERS = 3
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
DENSE_WIDTH = 128
EXPERTS = 8
EXPERT_WIDTH = 32


def config() -> dict:
    """The model's ``config.json``."""
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": alphabet.VOCABULARY_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "use_qk_norm": False,
        "moe_intermediate_size": EXPERT_WIDTH,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        # Multi-token prediction layers would have to be in the weights file too.
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "pad_token_id": alphabet.PAD,
        "bos_token_id": alphabet.BOS,
        "eos_token_id": alphabet.EOS,
    }


def make(path: str | Path, seed: int = 0) -> Path:
    """Write the model directory ``path``; the same seed gives the same bytes."""
    from safetensors.torch import save_file

    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    tokenizer.save(directory)
    weights = directory / "model.safetensors"
    save_file(_weights(seed), weights, metadata={"format": "pt"})
    # Written readable by their owner alone; a server may be somebody else.
    weights.chmod(0o644)
    return directory


def _weights(seed: int) -> dict:
    """Every tensor of the model, drawn in a fixed order.

    Weights of the usual initial size (0.02) make attention nearly uniform: each token
    then reads an average over its context and a wrong K changes nothing. Queries and keys
    are drawn large enough here for scores to spread over several units.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """Unit-variance output for unit-variance input, times ``gain``."""
        drawn = torch.randn(rows, columns, generator=generator)
        return drawn * (gain / columns**0.5)

    def swiglu(prefix: str, width: int) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}.gate_proj.weight": matrix(width, HIDDEN),
            f"{prefix}.up_proj.weight": matrix(width, HIDDEN),
            f"{prefix}.down_proj.weight": matrix(HIDDEN, width),
        }

    embedding = torch.randn(alphabet.VOCABULARY_SIZE, HIDDEN, generator=generator)
    weights = {"model.embed_tokens.weight": embedding}
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        weights[f"{layer}.input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[f"{layer}.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
        for name, heads, gain in (("q", HEADS, 1.6), ("k", KV_HEADS, 1.6), ("v", KV_HEADS, 1.0)):
            size = heads * HEAD_DIM
            weights[f"{layer}.self_attn.{name}_proj.weight"] = matrix(size, HIDDEN, gain)
            bias = torch.randn(size, generator=generator) * 0.1
            weights[f"{layer}.self_attn.{name}_proj.bias"] = bias
        weights[f"{layer}.self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM, 2.0)
        if index < config()["first_k_dense_replace"]:
            weights |= swiglu(f"{layer}.mlp", DENSE_WIDTH)
            continue
        weights[f"{layer}.mlp.gate.weight"] = matrix(EXPERTS, HIDDEN)
        weights[f"{layer}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
        for expert in range(EXPERTS):
            weights |= swiglu(f"{layer}.mlp.experts.{expert}", EXPERT_WIDTH)
        weights |= swiglu(f"{layer}.mlp.shared_experts", EXPERT_WIDTH)
    weights["model.norm.weight"] = torch.ones(HIDDEN)

    head = matrix(alphabet.VOCABULARY_SIZE, HIDDEN, 3.0)
    # A zero row scores below the best of the characters: output is plain text, and
    # no end-of-text token cuts a comparison short.
    first = len(alphabet.SPECIALS)
    head[:first] = 0
    head[first + len(alphabet.CHARACTERS) :] = 0
    weights["lm_head.weight"] = head
    return weights
