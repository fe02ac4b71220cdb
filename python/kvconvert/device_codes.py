"""Codes on the tensors of a GPU: the operators `*_device`, which a library that was built with CUDA has."""

import torch

from kvconvert.codes import CodedCheckpoint, LayerCodes
from kvconvert.factors import ConversionError

DTYPES = (torch.bfloat16, torch.float16)  # of queries, keys and values
MOST_SCRATCH = 256 << 20  # bytes that attention takes for a moment; sequences that need more together go one part after the other


def refuse_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Raises ConversionError for a dtype of which a device has no kernels."""
    if dtype not in DTYPES:
        raise ConversionError(f"codes on {device}: queries, keys and values are {str(dtype).removeprefix('torch.')}, expected "
                              "bfloat16 or float16; load the model with dtype=bfloat16, or run it on the CPU")


def require_op(ops, name: str, stored: str, device: torch.device) -> None:
    """Raises ConversionError for a library that has no ops of GPUs. stored: what they would read."""
    if not hasattr(ops, name):
        raise ConversionError(f"{stored} on {device}: kvconvert's library was built without CUDA; build it where nvcc is, with "
                              "`pip install . -C cmake.define.KVC_CUDA_OPS=ON`, or run on the CPU")


ALIGNMENT = 16  # of rows in pages: kernels copy as many bytes at once


def page_addresses(pages: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Addresses, int64, of the pages of these numbers; those that do not exist are the nearest. Raises ValueError for pages that
    kernels cannot copy."""
    stride = pages.stride(0) * pages.itemsize
    if pages.data_ptr() % ALIGNMENT or stride % ALIGNMENT:
        raise ValueError(f"pages: expected an address and a stride of multiples of {ALIGNMENT} bytes")
    return numbers.long().clamp(0, pages.shape[0] - 1) * stride + pages.data_ptr()


class DeviceCodes(LayerCodes):
    """Like LayerCodes, for tensors on `device`; requires bfloat16 or float16. Factors and tables of angles are there too."""

    def _open(self, checkpoint: CodedCheckpoint, shape: list[int], scales: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
              blocks: list[int], factors: list[torch.Tensor]) -> None:
        require_op(self._ops, "open_device", "codes", self.device)
        self._handle = self._ops.open_device(shape, scales, cos, sin, blocks, factors)
        image = torch.empty(self._ops.device_image_bytes(self._handle), dtype=torch.uint8, device="cpu")
        self._ops.device_image(self._handle, image)
        self._image = image.to(self.device)
        self._angles = checkpoint.on_device(cos, self.device), checkpoint.on_device(sin, self.device)
        self._no_tiles = torch.empty(0, dtype=torch.int32, device=self.device)

    def _close(self) -> None:
        self._ops.close_device(self._handle)

    def new_open_rows(self, tiles, dtype):
        refuse_dtype(dtype, self.device)
        return super().new_open_rows(tiles, dtype)

    def _store(self, pages, slots, positions, keys, values) -> None:
        refuse_dtype(keys[0].dtype, self.device)
        self._ops.store_device(self._handle, self._image, *self._angles, pages, slots, positions, keys, values)

    def _attend(self, layer, out, query, pages, block_table, tokens, max_tokens, open_keys, open_values, open_tiles) -> None:
        refuse_dtype(query.dtype, self.device)
        query = query.contiguous()  # engines' queries lie beside keys and values
        if max_tokens is None:
            max_tokens = int(tokens.max())
        if open_tiles.numel() == 0:
            open_keys, open_values, open_tiles = query.new_empty(0), query.new_empty(0), self._no_tiles
        self._ops.attend_device(self._handle, layer, self._image, *self._angles, out, query, pages, block_table, tokens,
                                max_tokens, MOST_SCRATCH, open_keys, open_values, open_tiles)

    def _read(self, layer, pages, page_numbers, first, keys, values) -> None:
        refuse_dtype(keys.dtype, self.device)
        self._ops.read_device(self._handle, layer, self._image, *self._angles, pages, page_numbers, first, keys, values)
