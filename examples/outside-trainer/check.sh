#!/bin/sh
# Runs both trainers for a few batches. Needs torch, transformers, trl and osmosis-rs in $PYTHON, and `osmosis`
# in $OSMOSIS or on the path. $ROLLOUT_PYTHON is the interpreter of the agent, if it is another one.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
osmosis=${OSMOSIS:-osmosis}
batches=${BATCHES:-3}
workspace=$(mktemp -d)
engine=
trap 'test -z "$engine" || kill "$engine" 2>/dev/null || true; rm -rf "$workspace"' EXIT
cp -R "$here/../calculator/." "$workspace"
cd "$workspace"
awk -v n="$batches" '/^eval_dataset/ { next }
    /^steps = / { print "steps = " n; print "max_staleness = 1"; next }
    { print }' configs/training/calculator.toml >configs/training/check.toml
OSMOSIS_CONTROL_KEY=$("$python" -c 'import secrets; print(secrets.token_urlsafe(32))')
export OSMOSIS_CONTROL_KEY

for trainer in grpo trl_grpo; do
    "$osmosis" train serve configs/training/check.toml --name "$trainer" \
        ${ROLLOUT_PYTHON:+--python "$ROLLOUT_PYTHON"} >"$trainer.out" &
    engine=$!
    until grep -q '^OSMOSIS_TRAINER_URL=' "$trainer.out"; do
        kill -0 "$engine" || exit 1
        sleep 1
    done
    OSMOSIS_TRAINER_URL=$(sed -n 's/^OSMOSIS_TRAINER_URL=//p' "$trainer.out")
    export OSMOSIS_TRAINER_URL
    case $trainer in
    grpo) "$python" "$here/grpo.py" ".osmosis/training/$trainer" ;;
    trl_grpo) "$python" "$here/trl_grpo.py" ".osmosis/training/$trainer" "$batches" 16 8 ;;
    esac
    wait "$engine"
    engine=
    "$osmosis" train info "$trainer"
done
