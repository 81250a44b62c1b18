"""Combinations: every exit answers with what all exits so far say together."""
