"""The target, its cache, the drafter and the decode loop."""
