#!/bin/sh
# One virtual environment for each peer, with pinned versions, so that none of them is ever a dependency of ours.
# usage: make_venvs.sh DIRECTORY   (then KINFOLD_BENCH_PEERS=DIRECTORY python scripts/bench/run.py peers)
set -eu
directory=$1
mkdir -p "$directory"
make() {
    name=$1
    shift
    python3 -m venv "$directory/$name"
    "$directory/$name/bin/python" -m pip install --quiet "$@"
}
make docker docker==7.2.0
# swe-rex imports aiohttp and does not name it.
make swe-rex swe-rex==1.4.0 aiohttp==3.14.5
make llm-sandbox 'llm-sandbox[docker]==0.3.46'
make inspect-ai inspect-ai==0.3.285
make openai-agents 'openai-agents[docker]==0.24.0'
