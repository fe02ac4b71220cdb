"""A plugin of vLLM for tests: tensors of the CPU take the way of a device's, in a library with emulated operators."""

import torch


def register() -> None:
    from kvconvert import codes
    from kvconvert.device_codes import DeviceCodes
    from kvconvert.device_prompts import PromptBlocks
    from kvconvert.vllm import backend

    def attend_prompt(query, length, coded, exact, *options):
        out = torch.empty_like(query)
        PromptBlocks(query, length, coded, exact, *options).attend(out)
        return out

    codes.codes_class = lambda device: DeviceCodes
    backend.attend_prompt = attend_prompt
