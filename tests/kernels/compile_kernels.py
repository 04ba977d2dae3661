"""Compile every kernel for GPU architectures, without a GPU, and print what came out.

Run as a process of its own, because it needs Triton's compiler and the other tests need
its interpreter: ``python compile_kernels.py 80 90``. Prints one JSON object: architecture
to kernel variant to its resources and the wide global accesses in its machine code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"

import triton
from sglang_kvguard.kernels.check_zero import _check_zero_kernel
from sglang_kvguard.kernels.fence import _fence_kernel
from sglang_kvguard.kernels.publish import _publish_mark_kernel, _publish_settle_kernel
from sglang_kvguard.kernels.release import _release_judge_kernel, _release_settle_kernel
from sglang_kvguard.kernels.scrub import _scrub_kernel
from sglang_kvguard.kernels.split import BLOCK
from sglang_kvguard.kernels.stamp import _stamp_claim_kernel, _stamp_settle_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {
    **dict.fromkeys(
        "pages history seals faults want locs born table ids chunks page_ids scrub_ids "
        "old_locs new_locs verdict scratch seq_lens".split(),
        "*i64",
    ),
    "req_to_token": "*i32",
    "rows": "*i64",
    "out_locs": "*i64",
}
WIDE = {"key": "i64", "birth_base": "i64"}

LIST = {"BLOCK": BLOCK}
PAGED = {**LIST, "PAGE_SIZE": 64}
VARIANTS = {
    "scrub": (_scrub_kernel, {"ROWS": 4, "VECS": 128, "ALIGNED": False}),
    "check_zero": (_check_zero_kernel, {"ROWS": 4, "VECS": 128, "ALIGNED": False}),
    "stamp_claim": (_stamp_claim_kernel, PAGED),
    "stamp_settle": (_stamp_settle_kernel, PAGED),
    "release_judge": (_release_judge_kernel, LIST),
    "release_settle": (_release_settle_kernel, LIST),
    "publish_mark": (_publish_mark_kernel, PAGED),
    "publish_settle": (_publish_settle_kernel, PAGED),
    "fence": (_fence_kernel, {**PAGED, "ENFORCE": True}),
}
# Other shapes of the same kernels, for one architecture: one unit that fills several
# tiles, many units that fill one, and pages whose size is no power of two.
MORE = {
    "scrub[long]": (_scrub_kernel, {"ROWS": 1, "VECS": 512, "ALIGNED": True}),
    "check_zero[short]": (_check_zero_kernel, {"ROWS": 64, "VECS": 8, "ALIGNED": True}),
    "fence[page_size=48]": (_fence_kernel, {**PAGED, "PAGE_SIZE": 48, "ENFORCE": False}),
}
MORE_FOR = 90


def tool(name: str) -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def run_tool(name: str, *args: str) -> str:
    done = subprocess.run([tool(name), *args], capture_output=True, text=True, check=True)
    return done.stdout


def compile_one(kernel, constants: dict[str, int | bool], capability: int) -> dict:
    names = list(kernel.arg_names)
    signature = {
        name: "constexpr" if name in constants else POINTERS.get(name, WIDE.get(name, "i32"))
        for name in names
    }
    # What the launcher finds for allocations of torch, which are aligned, where it looks.
    attributes = {
        (param.num,): [["tt.divisibility", 16]]
        for param in kernel.params
        if param.name in POINTERS and not param.do_not_specialize
    }
    source = ASTSource(
        kernel, signature, {(names.index(name),): value for name, value in constants.items()},
        attributes,
    )  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        usage = run_tool("cuobjdump", "-res-usage", cubin.name)
        code = run_tool("nvdisasm", "-c", cubin.name)
    (resources,) = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    registers, stack, shared, local = map(int, resources)
    return {
        "specialized": [
            param.name
            for param in kernel.params
            if not (param.is_constexpr or param.do_not_specialize)
        ],
        "wide_arguments": [param.name for param in kernel.params if param.annotation_type == "i64"],
        "registers": registers,
        "stack": stack,
        "shared": shared,
        "local": local,
        # STL and LDL move registers to and from local memory.
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "wide_stores": len(re.findall(r"\bSTG\.E\.(?:\w+\.)*128\b", code)),
        "wide_loads": len(re.findall(r"\bLDG\.E\.(?:\w+\.)*128\b", code)),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        # A stale cache must not answer for the compiler.
        os.environ["TRITON_CACHE_DIR"] = cache
        report = {}
        for capability in map(int, sys.argv[1:]):
            variants = VARIANTS | (MORE if capability == MORE_FOR else {})
            report[capability] = {
                variant: compile_one(kernel, constants, capability)
                for variant, (kernel, constants) in variants.items()
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
