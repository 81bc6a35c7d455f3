"""Whether what all workers of an engine keep in host memory fits into it, asked before each layer is made."""
