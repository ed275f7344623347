"""The numbers: gates, times, counters, mutants, and the evidence that keeps them."""
