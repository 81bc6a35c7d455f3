"""Replacement policies: which expert is evicted first."""
