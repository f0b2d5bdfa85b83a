"""What `import coe` and `--help` load, and how threads wait after it."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules", ["coe", "coe.lab.cli.bench, coe.cli.inspect, coe.cli.profile_command, coe.serve.command"]
)
def test_neither_the_front_door_nor_help_waits_for_large_libraries(modules):
    large = {"torch", "cv2", "matplotlib", "networkx", "sqlalchemy", "starlette", "alembic"}
    imports_all = f"import sys, {modules}; print(*{large} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", imports_all], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(given, policy):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    said = subprocess.run(
        [sys.executable, "-c", "import coe, os; print(os.environ['OMP_WAIT_POLICY'])"],
        env={**environment, **({"OMP_WAIT_POLICY": given} if given else {})},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == policy
