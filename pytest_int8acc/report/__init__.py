"""What was measured, as text for people; knows results and nothing else."""
