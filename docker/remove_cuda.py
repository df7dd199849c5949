"""Remove the parts of CUDA that torch loads only on a GPU; CPU images run this after the installation.

The torch wheel for Linux contains CUDA. Its extension modules are linked to CUDA libraries that the dynamic loader
needs on every machine; these are kept. All others are loaded on demand for GPU computations or used by compilers:
triton, libraries such as cuSOLVER and the cuDNN engines, headers, ptxas.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

CUDA_PACKAGE = re.compile(r"triton|(nvidia|cuda)-.+")
GPU_FILES_OF_TORCH = (
    *("include/**/*", "bin/ptxas", "bin/protoc*"),
    *("lib/libtorch_cuda_*.so", "lib/libcaffe2_nvrtc.so"),
)


def linked_libraries(site: Path) -> set[Path]:
    """Find the shared libraries that the dynamic loader loads with torch's extension modules.

    Those of torchvision need no others.

    Raises:
        RuntimeError: A library is missing.
    """
    libraries: set[Path] = set()
    for module in site.glob("torch/*.so"):
        listed = subprocess.run(["ldd", module], capture_output=True, text=True, check=True).stdout
        if "not found" in listed:
            raise RuntimeError(f"{module} needs a library that is not installed:\n{listed}")
        libraries |= {Path(path).resolve() for path in re.findall(r"=> (/\S+)", listed)}
    return libraries


def package_files(package: Distribution) -> list[Path]:
    """List a package's installed files, without metadata and licenses."""
    return [
        Path(str(package.locate_file(file))).resolve()
        for file in package.files or ()
        if not file.parts[0].endswith(".dist-info") and not file.name.upper().startswith("LICENSE")
    ]


def remove(files: Iterable[Path]) -> None:
    """Remove files, and skip folders."""
    for file in files:
        if file.is_file():
            file.unlink()


def main() -> None:
    site = Path(sysconfig.get_path("platlib"))
    linked = linked_libraries(site)
    unused = []
    for package in distributions(path=[str(site)]):
        if CUDA_PACKAGE.fullmatch(package.name.lower()):
            files = set(package_files(package))
            if files & linked:
                remove(files - linked)
            else:
                unused.append(package.name)
    for pattern in GPU_FILES_OF_TORCH:
        remove(set(site.glob(f"torch/{pattern}")) - linked)
    if unused:
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "--yes", *unused], check=True)


if __name__ == "__main__":
    main()
