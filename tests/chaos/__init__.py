"""A queue under attack: producers, workers, a nemesis, and a checker that believes only the log."""
