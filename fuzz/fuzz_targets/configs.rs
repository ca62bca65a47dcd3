#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| osmosis_core::fuzzing::configs(data));
