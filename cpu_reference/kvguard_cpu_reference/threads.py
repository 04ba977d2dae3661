"""CPU threads of the workers.

The models run here are so small that a second thread costs more than it brings, and on
a shared machine threads that wait for each other slow a forward pass down tenfold.
"""

import os


def use_one_thread() -> None:
    """Compute on one thread, unless the user chose a number."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def bind_ranks(ranks: int) -> None:
    """Give each of several ranks a CPU of its own, wrapping around when they run out.

    The engine wants one NUMA node a rank and refuses to start with fewer; a list of CPUs
    in the environment is its own way around that.
    """
    cpus = sorted(os.sched_getaffinity(0))
    binding = "|".join(str(cpus[rank % len(cpus)]) for rank in range(ranks))
    os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", binding)
