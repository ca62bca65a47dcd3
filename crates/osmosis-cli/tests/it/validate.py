"""Holds the documents on standard input against the schemas of a folder; prints what does not fit.

`jsonschema` comes with the packages of the test environment (openai-agents needs it by way of mcp).
"""

import json
import pathlib
import sys

from jsonschema import Draft202012Validator

folder = pathlib.Path(sys.argv[1])
validators = {}
for one in json.load(sys.stdin):
    name = one["schema"]
    if name not in validators:
        schema = json.loads((folder / f"{name}.json").read_text())
        Draft202012Validator.check_schema(schema)
        # The types leave room for fields of later versions; ours shall have none that the schema does not know.
        schema["unevaluatedProperties"] = False
        validators[name] = Draft202012Validator(schema)
    for error in validators[name].iter_errors(one["document"]):
        print(f"{name} at {error.json_path}: {error.message[:300]}")
