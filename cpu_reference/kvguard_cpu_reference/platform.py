"""The platform class SGLang instantiates in every one of its processes."""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from kvguard_cpu_reference import defaults, threads


class CpuReferencePlatform(CpuDeviceMixin, SRTPlatform):
    """CPU device, PyTorch operators, no kernels and no graphs.

    It counts as an out-of-tree platform, not as the in-tree CPU one: the latter selects
    compiled CPU kernels, the former takes the ``native`` implementation of every
    operator and lets this class decide the rest.
    """

    _enum = PlatformEnum.OOT

    # Everything stays False: allocators, writers and graph runners then take their
    # torch-native forms.
    capabilities = PlatformCapabilities()

    def get_device(self, device_id: int = 0) -> str:
        # The engine compares the answer with strings ("cpu"); a torch.device is
        # never equal to one, and its CPU rules would be skipped.
        return "cpu"

    def apply_server_args_defaults(self, server_args) -> None:
        defaults.apply(server_args)

    def init_backend(self) -> None:
        threads.use_one_thread()

    def get_default_attention_backend(self) -> str:
        return defaults.ATTENTION_BACKEND

    def get_dispatch_key_name(self) -> str:
        return "native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        # Nothing here is worth compiling, and inductor would need a C++ toolchain.
        return "eager"
