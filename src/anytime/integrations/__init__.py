"""Anytime networks in other libraries: Hugging Face's Trainer, Lightning, Sentence Transformers."""
