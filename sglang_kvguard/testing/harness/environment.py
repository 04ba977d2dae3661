"""The environment variables that a server process is started with."""

import os
import shutil
import subprocess
from collections.abc import Mapping

# The CPU reference platform can fork its processes instead of spawning them, which halves
# the time of a start. Set it to "" to spawn, as production does.
FORK = "KVGUARD_CPU_REFERENCE_FORK"

# Waiting threads that spin take the cores of a small machine away from each other.
QUIET_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def has_gpu() -> bool:
    """Whether the NVIDIA driver lists a device."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def server_environment(*, gpu: bool, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, made fit for a server.

    Args:
        gpu: serve on the GPU; otherwise on the CPU reference platform.
        extra: set on top.
    """
    environment = dict(os.environ)
    # Models are local directories; nothing is to be looked up on the network.
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if not gpu:
        environment |= {"SGLANG_PLATFORM": "cpu_reference", FORK: "1", **QUIET_THREADS}
    return environment | dict(extra or {})
