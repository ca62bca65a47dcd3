"""Reads back what run `t` told its trackers, and compares it with `metrics.json`."""

import glob
import json
import os

run = ".osmosis/evals/t"
metrics = json.load(open(f"{run}/metrics.json"))
wanted = {
    "pass_rate": metrics["pass_rate"],
    "reward/mean": metrics["reward"]["mean"],
    "prompt_tokens": metrics["prompt_tokens"],
    "pass_at_k/1": metrics["pass_at_k"]["1"],
}

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

board = EventAccumulator(f"{run}/tensorboard")
board.Reload()
for name, value in wanted.items():
    last = board.Scalars(name)[-1]
    assert last.step == 3 and abs(last.value - value) <= 1e-6 * max(1, value), (name, last)

from mlflow.tracking import MlflowClient

shared = os.path.abspath(".osmosis")
if os.path.exists(f"{shared}/mlflow.db"):
    client = MlflowClient(tracking_uri=f"sqlite:///{shared}/mlflow.db")
else:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = MlflowClient(tracking_uri=f"file:{shared}/mlruns")
experiment = client.get_experiment_by_name("r")
(found,) = client.search_runs([experiment.experiment_id])
assert found.info.status == "FINISHED" and found.info.run_name == "t"
assert {name: found.data.metrics[name] for name in wanted} == wanted
assert found.data.params["experiment.rollout"] == "r"

from wandb.proto import wandb_internal_pb2


def records(path):
    """A file of W&B: a header, then blocks of 32 KiB with records as LevelDB's log has them."""
    data = open(path, "rb").read()
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


(path,) = glob.glob(f"{run}/wandb/offline-run-*/run-*.wandb")
told = {}
for body in records(path):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(body)
    if record.WhichOneof("record_type") == "history":
        for item in record.history.item:
            told[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
assert {name: told[name] for name in wanted} == wanted
