"""The course: trees small enough for pen and paper, verifiers in plain Python, and checks for the exercises."""
