"""Training: the loop, the recipe, the run folder and its checkpoints, several trainings side by side."""
