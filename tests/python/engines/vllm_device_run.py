#!/usr/bin/env python3
"""vllm_run.py with the ops of a GPU, which compute in the emulator on tensors of the CPU: codes, latents and rows are
opened, and prompts attended to, as on a GPU. KVCONVERT_OPS names the emulator's library."""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine runs in this process

import kvconvert.codes  # noqa: E402
import kvconvert.latent_pages  # noqa: E402
import kvconvert.row_pages  # noqa: E402
import kvconvert.tiled_attention  # noqa: E402
from kvconvert.device_codes import DeviceCodes  # noqa: E402
from kvconvert.device_latents import DeviceLayerPages  # noqa: E402
from kvconvert.device_rows import DeviceLayerRows  # noqa: E402

kvconvert.codes.codes_class = lambda _: DeviceCodes
kvconvert.latent_pages.pages_class = lambda _: DeviceLayerPages
kvconvert.row_pages.rows_class = lambda _: DeviceLayerRows
kvconvert.tiled_attention.has_kernel = lambda _: False

import vllm_run  # noqa: E402

if __name__ == "__main__":
    vllm_run.main()
