"""Anytime networks in other libraries' training loops: Hugging Face's Trainer and Lightning."""
