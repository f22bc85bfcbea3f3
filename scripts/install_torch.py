"""Installs PyTorch for the CPU into the environment whose Python runs this, without the 4 GB of GPU libraries.

    .venv/bin/python scripts/install_torch.py [VERSION]

The registry has only builds that link to NVIDIA's libraries. torch calls one of them when it starts, so that one (the
CUDA runtime, under 1 MB) is installed; in place of the others this makes small libraries that define the functions
torch asks the linker for and that are never called on a CPU. Needs gcc, nm and readelf.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

# By version of torch, the newest first: the runtime that it is built with.
CUDA_RUNTIMES = {
    "2.15.0": "nvidia-cuda-runtime==13.2.86",
    "2.6.0": "nvidia-cuda-runtime-cu12==12.4.127",
    "2.5.1": "nvidia-cuda-runtime-cu12==12.4.127",
    "2.4.0": "nvidia-cuda-runtime-cu12==12.1.105",
}
NEEDED_BY_TORCH = ["filelock", "typing-extensions>=4.13", "sympy", "networkx", "jinja2", "fsspec", "numpy"]

# Libraries of torch that are opened only when a GPU is used.
LAZY = ("caffe2_nvrtc", "cuda_linalg")


def main():
    version = sys.argv[1] if len(sys.argv) > 1 else next(iter(CUDA_RUNTIMES))
    if version not in CUDA_RUNTIMES:
        sys.exit(f"versions whose libraries are known: {', '.join(CUDA_RUNTIMES)}")
    if works():
        return
    pip("--no-deps", f"torch=={version}", CUDA_RUNTIMES[version])
    pip(*NEEDED_BY_TORCH)
    packages = Path(sysconfig.get_paths()["purelib"])
    libraries = packages / "torch" / "lib"
    runtime = next(packages.glob("nvidia/**/libcudart.so.*"))
    shutil.copy(runtime, libraries)
    missing, functions = find_missing(libraries, runtime.name)
    for library in missing:
        make_library(libraries / library, functions[library])
    if not works():
        sys.exit("torch does not start with the libraries made for it")
    print(f"torch {version}: {len(missing)} libraries replaced, {sum(map(len, functions.values()))} functions")


def works():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def pip(*packages):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True)


def find_missing(libraries, runtime):
    """The NVIDIA libraries that torch links to, and for each the functions it wants with their versions."""
    missing, defined, wanted = set(), set(), {}
    for library in libraries.glob("lib*.so"):
        if any(name in library.name for name in LAZY):
            continue
        missing.update(re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)\w*\.so\.\d+)\]", output("readelf", "-d", library)))
        for line in output("nm", "--dynamic", library).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.replace("@@", "@").partition("@")
            if kind == "U":
                wanted.setdefault(name, version)
            elif kind not in "wv":
                defined.add(name)
    missing.discard(runtime)
    functions = defaultdict(list)
    for name, version in wanted.items():
        if name in defined or version == runtime or not re.match(r"_{0,2}(cu|nv|nccl)", name):
            continue
        # Functions carry the name of their library as version, but for two libraries.
        library = version if version in missing else "libnvshmem_host.so.3" if version == "NVSHMEM" else "libnccl.so.2"
        functions[library].append((name, version))
    return sorted(missing), functions


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_library(path, functions):
    by_version = defaultdict(list)
    for name, version in functions:
        if version:
            by_version[version].append(name)
    source = "".join(f"int {name}(void) {{ return 999; }}\n" for name, _ in functions)
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}", "-o", path]
    with tempfile.NamedTemporaryFile("w", suffix=".map") as versions:
        for version, names in by_version.items():
            versions.write(f"{version} {{ global: {'; '.join(names)}; }};\n")
        versions.flush()
        if by_version:
            command.append(f"-Wl,--version-script={versions.name}")
        subprocess.run([*command, "-x", "c", "-"], input=source, text=True, check=True)


if __name__ == "__main__":
    main()
