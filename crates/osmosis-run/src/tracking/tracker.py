"""Feeds the numbers of a run to MLflow or Weights & Biases.

Started by `osmosis eval|train submit --log ...` with one tracker's name, in an interpreter that has its
package. Reads JSON lines, answers each with one. Needs Python 3.9 and nothing but that package.
"""

import importlib.util
import json
import os
import sys
import time

PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}


class Mlflow:
    def __init__(self, run):
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri and importlib.util.find_spec("sqlalchemy"):
            uri = "sqlite:///" + os.path.join(run["shared_folder"], "mlflow.db")
        elif not uri:
            # `mlflow-skinny` has no database; newer releases want to be told that files are meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = "file:" + os.path.join(run["shared_folder"], "mlruns")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.metric = Metric
        self.client = MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run["project"]
        experiment = self.client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else None
        if experiment_id is None:
            artifacts = None
            if "://" not in uri or uri.startswith("sqlite:"):
                artifacts = "file:" + os.path.join(run["shared_folder"], "mlartifacts")
            experiment_id = self.client.create_experiment(name, artifact_location=artifacts)
        # A run that is resumed here is resumed there.
        wanted = f"tags.`osmosis.run` = '{run['id']}'"
        earlier = self.client.search_runs([experiment_id], wanted, max_results=1)
        if earlier:
            self.run_id = earlier[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            tags = {"osmosis.run": run["id"], "osmosis.folder": run["folder"]}
            created = self.client.create_run(experiment_id, run_name=run["name"], tags=tags)
            self.run_id = created.info.run_id
            params = [Param(name, str(value)[:500]) for name, value in run["params"].items()]
            for start in range(0, len(params), 100):
                self.client.log_batch(self.run_id, params=params[start : start + 100])
        self.place = f"{uri} (run {self.run_id})"

    def log(self, step, numbers):
        now = int(time.time() * 1000)
        metrics = [self.metric(name, value, now, step) for name, value in numbers.items()]
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + 1000])

    def end(self, finished):
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")


class Wandb:
    def __init__(self, run):
        import wandb

        # Nothing leaves this machine unless it is asked for.
        mode = os.environ.get("WANDB_MODE") or "offline"
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run["project"],
            name=run["name"],
            id=run["id"],
            resume="allow",
            dir=run["folder"],
            config=run["params"],
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),
        )
        folder = os.path.dirname(self.run.dir)
        self.place = f"{folder} (send it with `wandb sync`)" if mode == "offline" else self.run.url

    def log(self, step, numbers):
        self.run.log(numbers, step=step)

    def end(self, finished):
        self.run.finish(exit_code=0 if finished else 1)


def main():
    name = sys.argv[1]
    # The packages print what they like; answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    if importlib.util.find_spec(PACKAGES[name]) is None:
        answer(missing=PACKAGES[name])
        return
    answer(ready=True)
    tracker = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if "run" in message:
                tracker = {"mlflow": Mlflow, "wandb": Wandb}[name](message["run"])
                answer(place=tracker.place)
            elif "numbers" in message:
                tracker.log(message["step"], message["numbers"])
                answer(ok=True)
            else:
                tracker.end(message["finished"])
                answer(ok=True)
                return
        except Exception as error:  # whatever the package raises is told, and ends nothing else
            answer(error=f"{type(error).__name__}: {error}"[:2000])
            return


main()
