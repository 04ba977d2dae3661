"""How often the model answers right, by how hard the prompt is."""

import random
from dataclasses import dataclass

import torch

from sglang_kvguard.testing.recall import alphabet, prompts


@dataclass(frozen=True)
class Setting:
    """One kind of prompt."""

    pairs: int
    filler: int = 0
    near: float = 0.0
    """Share of keys one letter away from another."""

    def case(self, rng: random.Random) -> prompts.Case:
        keys = prompts.random_keys(rng, self.pairs, near=self.near)
        return prompts.case(rng, filler=self.filler, keys=keys)


SETTINGS = (
    *(Setting(pairs) for pairs in (1, 2, 3, 4, 6, 8, 12)),
    Setting(6, filler=100),
    Setting(12, filler=100),
    Setting(6, near=0.5),
)


@torch.no_grad()
def measure(model, setting: Setting, seed: int, prompts_tried: int = 200) -> float:
    """Share of random prompts whose whole answer is the greedy continuation."""
    rng = random.Random(f"{seed}/{setting}")
    right = 0
    for _ in range(prompts_tried):
        case = setting.case(rng)
        text = case.prompt + case.expected
        tokens = torch.tensor([alphabet.encode(text)])
        # Each prediction is made behind the true characters, which is greedy decoding
        # as long as all of them are right, and wrong as soon as it would be.
        best = model(input_ids=tokens[:, :-1], use_cache=False).logits.argmax(-1)
        right += alphabet.decode(best[0, -prompts.ANSWER_LENGTH :].tolist()) == case.expected
    return right / prompts_tried
