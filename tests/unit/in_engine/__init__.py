"""What the unit tests run inside the engine process; imported nowhere else."""
