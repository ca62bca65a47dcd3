import os

# No test sends traces anywhere.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
