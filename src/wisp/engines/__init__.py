"""Engines that the pager is attached to, one folder or file each; none imports another."""
