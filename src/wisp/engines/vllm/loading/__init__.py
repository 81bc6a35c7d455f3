"""From the checkpoint into a layer's backing store: copied into host memory, or noted where it lies in the files."""
