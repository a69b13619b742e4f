"""Draft trees, the exit law, builders and verifiers: tensors only, no model."""
