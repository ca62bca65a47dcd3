#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| osmosis_policy::fuzzing::model_configs(data));
