"""vLLM plugin: `LLM(DIR)` and `vllm serve DIR` run converted checkpoints on a cache of codes.

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`.
"""


def register() -> None:
    """Teaches this process the converted families. Cheap; a second call changes nothing."""
    from kvconvert.vllm.registration import register_families

    register_families()
