"""Trains the recall model from scratch, on one CPU thread in minutes."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sglang_kvguard.testing.recall import lessons, network

_MATRIX_RATE = 0.02
_OTHER_RATE = 2e-3
_WARM_UP_STEPS = 50
_DECAY_SHARE = 0.4
_CLIP = 1.0

# The level rises a little at every step that finds the moving accuracy above the bar.
_BAR = 0.9
_RISE = 0.01
_MEMORY = 0.9


@dataclass(frozen=True)
class Progress:
    """How a training run stands after ``step`` steps."""

    step: int
    steps: int
    loss: float
    first_digit: float
    """Moving share of first digits that were predicted right."""
    level: float
    seconds: float

    @property
    def seconds_left(self) -> float:
        return self.seconds / self.step * (self.steps - self.step)


def train(seed: int, steps: int, report: Callable[[Progress], None]):
    """A model trained for ``steps`` steps; the same seed gives the same model."""
    # Sums are split over threads, and another split rounds differently.
    torch.set_num_threads(1)
    model = network.build(seed)
    optimisers = _optimisers(model)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, steps))
        for optimiser in optimisers
    ]
    rng = random.Random(seed)
    level = lessons.Level()
    accuracy = 0.0
    started = time.monotonic()
    for step in range(1, steps + 1):
        repetitions = 0.5 + (0.1 - 0.5) * (step - 1) / steps
        tokens, weights, first = lessons.tensors(lessons.batch(rng, level, repetitions))
        loss, right = _loss(model, tokens, weights, first)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
        if right is not None:
            accuracy = _MEMORY * accuracy + (1 - _MEMORY) * right
        if accuracy > _BAR:
            level.raise_by(_RISE)
        elapsed = time.monotonic() - started
        report(Progress(step, steps, loss.item(), accuracy, level.value, elapsed))
    return model.eval()


def _optimisers(model) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between hidden states, AdamW for everything else."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        inner = parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
        (matrices if inner else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices, lr=_MATRIX_RATE, weight_decay=0.01, adjust_lr_fn="original"
        ),
        torch.optim.AdamW(others, lr=_OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def _rate(step: int, steps: int) -> float:
    """Share of the full rate: up at first, flat, then down to nothing."""
    rise = (step + 1) / _WARM_UP_STEPS
    fall = (steps - step) / (steps * _DECAY_SHARE)
    return min(1.0, rise, fall)


def _loss(model, tokens, weights, first):
    """Weighted cross entropy, and the share of first digits right (None without any)."""
    # Padding is on the right: causal attention keeps it out of everything that counts.
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    targets, weights, first = tokens[:, 1:], weights[:, 1:], first[:, 1:]
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss = (each * weights.flatten()).sum() / weights.sum()
    if not first.any():
        return loss, None
    return loss, (logits.argmax(-1) == targets)[first].float().mean().item()
