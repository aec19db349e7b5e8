"""From texts to token ids, as a model's own tokenizer reads them."""
