"""A trainer that learns nothing: it writes down what it gets, and dies or waits as it is told."""

import hashlib
import json
import os
import sys

from osmosis_ai.trainer import TrainerClient, TrainingBatch

journal, weights = sys.argv[1:]
die_received, die_acknowledged, wait_received = (
    int(os.environ.get(name, "0"))
    for name in ("DIE_RECEIVED", "DIE_ACKNOWLEDGED", "WAIT_RECEIVED")
)


def note(event: str, batch: TrainingBatch) -> None:
    """Writes a line that stays, whatever happens next."""
    rows = [vars(row) for row in batch.rows]
    arrays = batch.arrays()
    assert arrays.ids.shape == arrays.logprobs.shape == arrays.versions.shape
    assert ((arrays.versions >= 0) >= (arrays.loss_mask > 0)).all()
    line = {
        "event": event,
        "number": batch.number,
        "groups": sorted(batch.groups()),
        "rows": [f"{row.rollout_id} {row.row}" for row in batch.rows],
        "oldest": int(arrays.versions[arrays.versions >= 0].min(initial=batch.version)),
        "version": batch.version,
        "digest": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
    }
    with open(journal, "a") as file:
        file.write(json.dumps(line) + "\n")


client = TrainerClient(retry_for=90)
for batch in client.batches(wait=5):
    note("received", batch)
    if batch.number == die_received:
        os._exit(9)
    if batch.number == wait_received:
        print("waiting", flush=True)
        sys.stdin.readline()
    batch.ack()
    note("acknowledged", batch)
    if batch.number == die_acknowledged:
        os._exit(9)
    folder = None if weights == "-" else weights
    assert client.announce(weights=folder, version=batch.number) == batch.number
