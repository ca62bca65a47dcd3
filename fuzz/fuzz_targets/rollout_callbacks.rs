#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| osmosis_server::fuzzing::rollout_callbacks(data));
