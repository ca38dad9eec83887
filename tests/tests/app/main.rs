//! Tests of the program from outside: its command line, its server, its files. They are one test
//! program, which is linked once.

// The compiler checks whether an engine can be sent to a thread through all types of wgpu.
#![recursion_limit = "256"]

mod built_in_chat;
mod chat_templates;
mod cli_bench;
mod cli_chat;
mod cli_draft;
mod cli_eval;
mod cli_files;
mod cli_gpu;
mod cli_inspect;
mod cli_logits;
mod cli_lost_file;
mod cli_out;
mod cli_pictures;
mod cli_plan;
mod cli_plan_memory;
mod cli_run;
mod cli_serve;
mod cli_streams;
mod cli_usage;
mod icons;
mod portable;
mod remote;
mod sentinels;
mod server_answers;
mod server_anthropic;
mod server_embeddings;
mod server_encoders;
mod server_fuzzed;
mod server_limits;
mod server_logprobs;
mod server_models;
mod server_ollama;
mod server_parallel;
mod server_pictures;
mod server_reasoning;
mod server_requests;
mod server_responses;
mod server_schemas;
mod server_tokens;
mod server_tools;
mod tools;
