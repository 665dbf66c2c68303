"""The fixer in a real container."""

from pathlib import Path

import pytest

from kinfold.definitions import load

FIXER = load(Path(__file__).parents[1] / "agents")


def test_the_main_agent_has_the_fixer_mend_the_sum(kinfold_task, scripted_model):
    order = {"subagent_type": "fixer", "description": "Mend it", "prompt": "Mend sum.txt"}
    mend = {"command": "test $(cat sum.txt | wc -l) = 1 && sed -i 's/= 4/= 5/' sum.txt"}
    done = {"summary": "mended", "paths": ["sum.txt"]}
    model = scripted_model(
        main=[{"calls": [{"tool": "task", "input": order}]}, {"calls": [{"tool": "complete", "input": done}]}],
        subagents={
            "fixer": [{"calls": [{"tool": "bash", "input": mend}]}, {"calls": [{"tool": "complete", "input": done}]}]
        },
    )
    result = kinfold_task("Mend sum.txt", model=model, files={"sum.txt": "2 + 3 = 4\n"}, definitions=FIXER)
    assert result.ended_by == "complete"
    assert (kinfold_task.out / "sum.txt").read_text() == "2 + 3 = 5\n"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
async def test_what_the_fixer_needs_is_in_the_image(kinfold_sandbox):
    async with kinfold_sandbox(files={"in/a.txt": b"a"}) as sandbox:
        result = await sandbox.exec(["sed", "--version"])
        assert (result.exit_code, await sandbox.read("in/a.txt")) == (0, b"a")
