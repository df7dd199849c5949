"""docker/remove_cuda.py keeps the libraries that torch is linked with, and removes the rest of the CUDA packages."""

from __future__ import annotations

import shutil
import sysconfig
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    spec = spec_from_file_location("remove_cuda", root / "docker" / "remove_cuda.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> Path:
    return Path(sysconfig.get_path("platlib"))


@pytest.mark.skipif(shutil.which("ldd") is None, reason="no ldd: the dynamic loader of another system")
def test_libraries_that_torch_is_linked_with_are_kept(script: ModuleType, site: Path) -> None:
    kept = script.linked_libraries(site)
    assert site.resolve() / "torch/lib/libtorch_cpu.so" in kept
    assert all(path.is_file() for path in kept)
    assert not [path for path in kept if "triton" in path.parts]


def test_only_packages_of_cuda_lose_files(script: ModuleType, site: Path) -> None:
    names = {package.name for package in distributions(path=[str(site)])}
    chosen = {name for name in names if script.CUDA_PACKAGE.fullmatch(name.lower())}
    assert {name.partition("-")[0] for name in chosen} <= {"nvidia", "cuda", "triton"}
    assert not chosen & {"torch", "torchvision", "numpy"}


def test_metadata_and_licenses_of_packages_are_kept(script: ModuleType, site: Path) -> None:
    package = next(package for package in distributions(path=[str(site)]) if package.name == "numpy")
    files = script.package_files(package)
    assert site.resolve() / "numpy/__init__.py" in files
    assert not [path for path in files if ".dist-info" in str(path) or path.name.startswith("LICENSE")]
