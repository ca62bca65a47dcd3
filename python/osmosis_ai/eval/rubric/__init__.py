"""A model as judge: `evaluate_rubric` scores an answer by what a rubric says.

```python
from osmosis_ai import evaluate_rubric

result = await evaluate_rubric(rubric="Is it polite?", solution_str="Good morning!")
print(result.score, result.explanation)
```
"""

from osmosis_ai.eval.rubric.engine import evaluate_rubric
from osmosis_ai.eval.rubric.types import (
    JudgeError,
    MalformedJudgementError,
    MissingAPIKeyError,
    ModelNotFoundError,
    ProviderRequestError,
    RubricResult,
)

__all__ = [
    "JudgeError",
    "MalformedJudgementError",
    "MissingAPIKeyError",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RubricResult",
    "evaluate_rubric",
]
