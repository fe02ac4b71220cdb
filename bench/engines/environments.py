"""Virtual environments under build/engines/, one for each engine, with the versions that versions.env pins.

They see the packages of the environment with transformers (scripts/setup.sh --peers), so an engine adds a few MiB to torch's
gigabytes. An environment that holds the pinned versions is left as it is.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "engines"


class InstallError(Exception):
    """An environment that cannot be had here; the message says why."""


def pinned(package):
    """The version of a distribution that versions.env names."""
    key = package.upper().replace("-", "_") + "_VERSION"
    for line in (ROOT / "versions.env").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("=")
        if name == key:
            return version
    raise InstallError(f"versions.env: no {key}")


def _output(command, **options):
    return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)


def installed(python, packages):
    """Does the interpreter see these distributions in their pinned versions?"""
    code = "import sys, importlib.metadata as m\nfor p in sys.argv[1:]: print(m.version(p).split('+')[0])"
    found = _output([python, "-c", code, *packages]).stdout.split()
    return found == [pinned(package) for package in packages]


def peers_python():
    """The interpreter that has transformers."""
    for name in (".venv-peers", ".venv"):
        python = ROOT / name / "bin" / "python"
        if python.exists() and installed(python, ["torch", "transformers", "safetensors", "numpy"]):
            return python
    raise InstallError("no interpreter with transformers; run scripts/setup.sh --peers")


def vllm_script():
    """What runs a Python script with vLLM and this tree's plugin."""
    python = ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists() or not installed(python, ["vllm"]):
        raise InstallError("no interpreter with vLLM; run scripts/setup.sh --vllm")
    return ROOT / "scripts" / "with_vllm.sh"


def _site_packages(python):
    return _output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True).stdout.strip()


def has_engine(name, packages):
    """Is there an interpreter of build/engines/`name` with these packages?"""
    python = FOLDER / name / "bin" / "python"
    return python.exists() and installed(python, packages)


def engine_python(name, packages, compiled=()):
    """The interpreter of build/engines/`name`, which has `packages`; those of `compiled` come as source and take minutes."""
    peers = peers_python()
    folder = FOLDER / name
    python = folder / "bin" / "python"
    if has_engine(name, packages):
        return python
    wanted = [f"{package}=={pinned(package)}" for package in packages]
    print(f"{name}: installing {', '.join(wanted)} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    made = _output([peers, "-m", "venv", folder])
    if made.returncode:
        raise InstallError(f"{folder}: cannot be made: {made.stderr or made.stdout}")
    pathlib.Path(_site_packages(python), "peers.pth").write_text(_site_packages(peers) + "\n", encoding="utf-8")
    source = ["--no-binary", ",".join(compiled)] if compiled else []
    result = _output([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary",
                      *source, *wanted], env=os.environ | {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())})
    if result.returncode or not installed(python, packages):
        raise InstallError((result.stderr.strip() or "pip installed other versions").splitlines()[-1])
    return python
