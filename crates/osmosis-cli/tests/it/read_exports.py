"""Reads `t.eval`, `t.sft.jsonl` and `t.atif.jsonl` of the working directory with the packages they are for."""

import json
import os
import sys
import types

from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

log = read_eval_log("t.eval")
assert log.status == "success" and len(log.samples) == 3
assert {s.name: list(s.metrics.values())[0].value for s in log.results.scores} == {"passed": 1.0, "reward": 1.0}
assert [m.role for m in log.samples[0].messages] == ["user", "assistant", "tool", "assistant"]
calls = [event for event in log.samples[0].events if event.event == "model"]
assert [len(call.input) for call in calls] == [1, 3]
assert len(read_eval_log_sample_summaries("t.eval")) == 3

os.environ["HF_HUB_OFFLINE"] = "1"
from datasets import load_dataset

rows = load_dataset("json", data_files="t.sft.jsonl", split="train")
assert len(rows) == 3 and rows[0]["messages"][0]["role"] == "user" and rows[0]["tools"]

# Only the models and the validator: the package wants more than they do.
source = os.environ["HARBOR"]
for name in ["harbor", "harbor.models", "harbor.utils"]:
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(source, *name.split("."))]
    sys.modules[name] = module
from harbor.utils.trajectory_validator import TrajectoryValidator

for line in open("t.atif.jsonl"):
    validator = TrajectoryValidator()
    assert validator.validate(json.loads(line)), validator.errors
