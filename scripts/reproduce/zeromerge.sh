#!/usr/bin/env bash
# The main table of the paper, measured on a checkpoint: zeromerge.sh [MODEL] [DATA...]; --help tells more.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/reproduce.py" zeromerge "$@"
