"""lm-evaluation-harness that also evaluates converted directories: `python -m kvconvert.lm_eval` takes the arguments of
`lm_eval`. `--model hf` then loads them with their small cache."""

import kvconvert  # noqa: F401  (makes transformers' Auto classes load converted directories)


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
