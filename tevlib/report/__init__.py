"""Records -> tables and figures. Never loads a model."""
