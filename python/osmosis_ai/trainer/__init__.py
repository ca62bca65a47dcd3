"""For trainers: batches of rollouts from `osmosis train serve`, and new weights back to it.

```python
from osmosis_ai.trainer import TrainerClient

client = TrainerClient()  # OSMOSIS_TRAINER_URL, OSMOSIS_CONTROL_KEY
for batch in client.batches():
    update(model, batch.arrays())
    save(model, folder := f"weights/{batch.number}")
    batch.ack()
    client.announce(weights=folder, version=batch.number)
```

A batch is given again until it is acknowledged: a trainer that dies and comes back misses none.
"""

from osmosis_ai.trainer.batch import BatchArrays, TrainingBatch, TrainingRow
from osmosis_ai.trainer.client import TrainerClient
from osmosis_ai.trainer.errors import (
    TrainerError,
    TrainerKeyError,
    TrainerRequestError,
    TrainerUnreachableError,
)

__all__ = [
    "TrainerClient",
    "TrainingBatch",
    "TrainingRow",
    "BatchArrays",
    "TrainerError",
    "TrainerKeyError",
    "TrainerRequestError",
    "TrainerUnreachableError",
]
