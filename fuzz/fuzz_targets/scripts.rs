#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| osmosis_gateway::fuzzing::scripts(data));
