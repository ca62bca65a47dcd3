"""A trainer that asks for one batch after the other, and says which it got."""

import sys

from osmosis_ai.trainer import TrainerClient

weights, batches = sys.argv[1], int(sys.argv[2])
client = TrainerClient(retry_for=60)
trained = 0
while trained < batches:
    batch = client.next_batch(wait=30)
    if batch is None:
        continue
    trained += 1
    client.announce(weights=weights, version=max(batch.number, client.version()))
    batch.ack()
    print(batch.number, flush=True)
# The engine ends when it was asked for more than there is.
assert client.next_batch(wait=30) is None
