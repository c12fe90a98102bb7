"""Names of keys in other toolkits, and the equivalent keys of Dragoman."""

from __future__ import annotations

_NAMES = {
    "data.filter.max_tokens": "src_seq_length max_length max_seq_length max_source_positions",
    "data.source_language": "source_lang src_lang",
    "data.target_language": "target_lang tgt_lang trg_lang",
    "data.train": "train_sets train_file",
    "data.valid": "valid_sets validation_file dev",
    "model.activation": "activation_fn hidden_act",
    "model.activation_dropout": "relu_dropout",
    "model.d_ff": "transformer_ff transformer_dim_ffn encoder_ffn_embed_dim dim_feedforward intermediate_size ff_size",
    "model.d_model": "hidden_size rnn_size word_vec_size dim_emb encoder_embed_dim embedding_dim n_embd",
    "model.decoder_layers": "dec_layers dec_depth num_decoder_layers",
    "model.encoder_layers": "layers enc_layers enc_depth num_layers num_encoder_layers num_hidden_layers",
    "model.n_heads": "heads nhead num_heads num_attention_heads encoder_attention_heads transformer_heads",
    "model.n_kv_heads": "num_key_value_heads",
    "model.normalize_embeddings": "layernorm_embedding normalize_embedding",
    "model.order": "norm_first pre_norm encoder_normalize_before",
    "model.position.kind": "position_encoding positional_encoding",
    "model.tie": "share_embeddings share_all_embeddings tied_embeddings tied_embeddings_all tie_word_embeddings",
    "search.alpha": "lenpen length_penalty normalize",
    "search.beam": "beam_size num_beams",
    "search.max_extra": "max_len_b max_new_tokens",
    "search.no_repeat_ngram": "no_repeat_ngram_size block_ngram_repeat",
    "tokenizer.shared": "share_vocab joined_dictionary joint_vocab",
    "tokenizer.vocab_size": "src_vocab_size dim_vocabs",
    "train.accumulate": "update_freq accum_count optimizer_delay gradient_accumulation_steps",
    "train.batch_tokens": "batch_size mini_batch per_device_train_batch_size",
    "train.budget": "epochs max_epoch max_epochs num_train_epochs after_epochs max_steps train_steps max_update",
    "train.clip_norm": "max_grad_norm gradient_clip_val",
    "train.device": "gpu gpus use_cuda gpu_ranks devices",
    "train.ema": "exponential_smoothing ema_decay",
    "train.gradient_checkpointing": "checkpoint_activations activation_checkpointing recompute",
    "train.init_from": "train_from finetune_from_model pretrained_model load_model model_name_or_path restore_file",
    "train.keep": "keep_checkpoint keep_last_epochs save_total_limit",
    "train.label_smoothing": "label_smoothing_factor",
    "train.log_every": "report_every disp_freq log_interval logging_steps",
    "train.lora.alpha": "lora_alpha",
    "train.lora.rank": "lora_rank lora_r",
    "train.lora.targets": "target_modules lora_target_modules",
    "train.metric": "best_checkpoint_metric metric_for_best_model eval_metric valid_metrics",
    "train.optimizer.kind": "optim",
    "train.patience": "early_stopping early_stopping_patience",
    "train.precision": "fp16 bf16 amp mixed_precision",
    "train.save_every": "save_steps save_freq save_checkpoint_steps save_interval",
    "train.schedule.kind": "lr_scheduler lr_scheduler_type decay_method",
    "train.schedule.peak": "lr learning_rate learn_rate",
    "train.schedule.warmup": "warmup_steps warmup_updates lr_warmup",
    "train.threads": "num_threads cpu_threads",
    "train.validate_every": "valid_steps valid_freq validate_interval eval_steps",
}
FOREIGN_NAMES = {name: key for key, names in _NAMES.items() for name in names.split()}
"""Name in fairseq, OpenNMT-py, Marian, Hugging Face or PyTorch, with underscores -> key of Dragoman."""


def native_name(name: str) -> str | None:
    """Return the key of Dragoman for a name of another toolkit, such as "early-stopping"; None if it is unknown."""
    return FOREIGN_NAMES.get(name.replace("-", "_").lower())
