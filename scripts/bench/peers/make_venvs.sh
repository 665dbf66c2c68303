#!/bin/sh
# One virtual environment for each peer, with pinned versions, so that none of them is ever a dependency of ours; and the
# image that all of them run: kinfold/base with swe-rex's server in it, put there without a network.
# usage: make_venvs.sh DIRECTORY   (then KINFOLD_BENCH_PEERS=DIRECTORY python scripts/bench/run.py peers delegation)
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

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
"$directory/swe-rex/bin/python" -m pip download --quiet --dest "$context/wheels" swe-rex==1.4.0
cat >"$context/Dockerfile" <<'DOCKERFILE'
FROM kinfold/base
USER 0
COPY wheels /wheels
RUN python3 -m pip install --quiet --break-system-packages --no-index --find-links /wheels swe-rex && rm -rf /wheels
DOCKERFILE
docker build --quiet --network none --tag kinfold-bench/peers "$context"
make deepagents deepagents==0.7.32 langchain-anthropic==1.7.10
