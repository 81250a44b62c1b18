"""Labeled images: data sets, where they come from, how they are cached, streamed and augmented."""
