#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| osmosis_data::fuzzing::arrow(data));
