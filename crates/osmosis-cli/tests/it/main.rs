//! The `osmosis` binary as a user meets it: real workers, the real OpenAI Agents SDK, real files.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't go on has failed"
)]

mod acknowledged_batches;
mod again;
mod areal;
mod areal_outside;
mod areal_processes;
mod areal_sampled;
mod artifacts;
mod bad_configs;
mod bad_training;
mod bad_user_code;
mod closed_pipes;
mod code_on_disk;
mod compare;
mod completion;
mod culprits;
mod dataset_columns;
mod demo;
mod deploy;
mod doctor;
mod ends;
mod evaluation_guide;
mod exports;
mod failures_guide;
mod false_graders;
mod file_modes;
mod finding_rollouts;
mod first_path;
mod gateway_command;
mod hostile_templates;
mod ignored_tools;
mod interruption;
mod isolation;
mod judge;
mod judge_guide;
mod kept_runs;
mod kills;
mod large_rewards;
mod left_behind;
mod log_following;
mod log_limits;
mod measured;
mod model_nodes;
mod nodes;
mod one_row;
mod outside_trainer;
mod overrides;
mod packaging;
mod postgres_store;
mod preflight;
mod probe;
mod processes;
mod progress;
mod python_guide;
mod regrade;
mod remote_server;
mod run_files;
mod rust_rollout;
mod schemas;
mod sent_calls;
mod serve;
mod serve_access;
mod serve_kills;
mod sft;
mod shared_report;
mod small_commands;
mod starting;
mod structured_agents;
mod terminal;
mod token_exports;
mod torch_trainer;
mod traces;
mod trained_adapters;
mod training;
mod training_interruption;
mod turn_rewards;
mod unlearnable;
mod upstream;
mod view;
mod worker_environment;
mod workspace;
