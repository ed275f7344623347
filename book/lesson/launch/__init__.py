"""Launch geometry: what each path and each rung checks, allocates and launches."""
