"""What pruning costs in answers: tasks, oracle, correlation, and the runs that compare methods."""
