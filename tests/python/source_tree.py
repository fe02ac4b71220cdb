"""The package of this source tree and the operators that were built: imported before torch and kvconvert."""

import os
import pathlib
import sys

ROOT = pathlib.Path(os.environ.get("KVC_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait in loops take the time of those that work
if "KVC_BIN_DIR" in os.environ:
    os.environ.setdefault("KVCONVERT_OPS", str(pathlib.Path(os.environ["KVC_BIN_DIR"]).parent / "lib/libkvconvert_ops.so"))
