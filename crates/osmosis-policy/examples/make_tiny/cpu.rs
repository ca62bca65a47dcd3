//! The kind of processor that a model was made on: another kind may round differently.

use std::fs;

use serde_json::{Value, json};

/// Name, instruction sets and caches. Matrix products choose their kernels by the second and their
/// blocks by the third.
pub(crate) fn kind() -> Value {
    json!({
        "architecture": std::env::consts::ARCH,
        "name": name(),
        "features": features(),
        "caches": caches(),
    })
}

fn name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// As Linux lists them, for one core.
fn caches() -> Vec<String> {
    let read = |level: usize, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{level}/{file}");
        fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    (0..4)
        .map_while(|level| Some(format!("{} {}", read(level, "type")?, read(level, "size")?)))
        .collect()
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    [
        ("sse4.1", is_x86_feature_detected!("sse4.1")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
    ]
    .into_iter()
    .filter_map(|(name, there)| there.then_some(name))
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
