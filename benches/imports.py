"""What `import osmosis_ai.rollout` costs over pydantic, which every rollout needs anyway.

CPU time of fresh interpreters, taken in turns, so that a busy machine disturbs all alike.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent / "python"
ROUNDS = 15
PROGRAMS = {
    "import pydantic": "import pydantic",
    "a pydantic model": "from pydantic import BaseModel\nclass A(BaseModel):\n    a: int = 1",
    "import osmosis_ai.rollout": "import osmosis_ai.rollout",
}
GOAL_MS = 150


def cpu_ms(code: str) -> float:
    program = (
        f"import time\nstart = time.process_time()\n{code}\nprint(time.process_time() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SDK)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout) * 1000


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    # The first round, which may have to compile, does not count.
    for turn in range(ROUNDS + 1):
        for name, code in PROGRAMS.items():
            took = cpu_ms(code)
            if turn:
                times[name].append(took)
    medians = {name: statistics.median(took) for name, took in times.items()}
    for name, took in medians.items():
        print(f"{name:<28} {took:6.0f} ms of CPU, median of {ROUNDS}")
    over = medians["import osmosis_ai.rollout"] - medians["import pydantic"]
    print(f"{'over bare pydantic':<28} {over:6.0f} ms (goal: under {GOAL_MS})")


if __name__ == "__main__":
    main()
