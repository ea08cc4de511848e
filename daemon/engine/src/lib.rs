//! Checkpoint, tokenizer, decoder, paged KV cache, scheduler and sampler: one engine loop on one thread.
