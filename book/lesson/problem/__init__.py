"""What is computed: the problem, its inputs, its answer, its gate, its bytes. NumPy alone."""
