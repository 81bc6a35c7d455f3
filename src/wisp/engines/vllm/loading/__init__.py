"""From the checkpoint to a layer's backing store: into host memory, or to where the bytes lie in the files."""
