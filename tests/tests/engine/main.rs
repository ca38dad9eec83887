//! Tests of the engine's public interface that do not measure time. They are one program, which is
//! linked once.

// The compiler checks whether an engine can be sent to a thread through all types of wgpu.
#![recursion_limit = "256"]

mod assistants;
mod attribution;
mod batches;
mod boundary;
mod containers;
mod convert;
mod draft_heads;
mod draft_logits;
mod encoders;
mod eval;
mod forecast;
mod fuzzed;
mod gguf_malformed;
mod golden_files;
mod golden_gguf;
mod golden_models;
mod gpu_models;
mod gpu_processor;
mod gpu_session;
mod hybrid;
mod kept_counts;
mod kv_cache;
mod kv_pages;
mod larger_than_ram;
mod lost_file;
mod models;
mod moe;
mod neurons;
mod one_text;
mod picture_tokens;
mod placed;
mod predictor;
mod preferred_answers;
mod prepare;
mod published_keys;
mod recurrent_models;
mod refused_models;
mod refused_tensors;
mod same_bits_gpu;
mod same_text;
mod session;
mod sidecar;
mod sparse_cpu;
mod split;
mod synth;
mod tails;
mod tight;
mod tokenizer;
mod tokenizer_hostile;
mod unified_memory;
mod variants;
mod weight_types;
mod windows;
mod workers;
