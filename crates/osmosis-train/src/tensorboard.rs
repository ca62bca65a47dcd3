//! TensorBoard event files: TFRecords of `Event` messages with scalar summaries.
//!
//! The format is small and has not changed in years, so it is written out here: a record is its length
//! (u64), a masked CRC-32C of that, the bytes, and a masked CRC-32C of them; the bytes are a protocol
//! buffer of four fields.

use std::fs::{self, File};
use std::io::Write;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::StepRecord;
use serde_json::{Map, Value};

use crate::TrainError;

/// Below a run's folder.
pub const FOLDER: &str = "tensorboard";
const FILE_PREFIX: &str = "events.out.tfevents.";

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: Utf8PathBuf,
    file: File,
}

impl EventFile {
    /// Begins the run's event file with the steps that are done. Files that an earlier process wrote are
    /// removed: they may hold steps that are about to be repeated, and the store has all that count.
    pub fn rewrite(run_folder: &Utf8Path, steps: &[StepRecord]) -> Result<Self, TrainError> {
        let folder = run_folder.join(FOLDER);
        let failed = |error: std::io::Error| TrainError::file(&folder, &error);
        fs::create_dir_all(&folder).map_err(failed)?;
        for entry in folder.read_dir_utf8().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().starts_with(FILE_PREFIX) {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        let began = steps.first().map_or(0, |step| step.finished_at_ms) / 1000;
        let path = folder.join(format!("{FILE_PREFIX}{began:010}.osmosis"));
        let file = File::create(&path).map_err(|error| TrainError::file(&path, &error))?;
        let mut events = Self { path, file };
        events.write(&record(&version_event(began as f64)))?;
        for step in steps {
            events.append(step)?;
        }
        Ok(events)
    }

    /// Adds the numbers of a step.
    pub fn append(&mut self, step: &StepRecord) -> Result<(), TrainError> {
        let metrics: Map<String, Value> = step
            .metrics
            .read()
            .map_err(|error| TrainError::Internal(error.to_string()))?;
        let scalars = scalars(&metrics);
        if scalars.is_empty() {
            return Ok(());
        }
        let event = scalar_event(step.finished_at_ms as f64 / 1000.0, step.step, &scalars);
        self.write(&record(&event))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        self.file
            .write_all(bytes)
            .map_err(|error| TrainError::file(&self.path, &error))
    }
}

/// The numbers among the metrics; the step itself is the axis.
fn scalars(metrics: &Map<String, Value>) -> Vec<(&str, f64)> {
    metrics
        .iter()
        .filter(|(name, _)| *name != "step")
        .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
        .collect()
}

/// The first event of a file.
fn version_event(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    put_bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// `Event { wall_time = 1; step = 2; summary = 5 { value = 1 { tag = 1; simple_value = 2 } } }`
fn scalar_event(wall_time: f64, step: u64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, tag.as_bytes());
        put_float(&mut entry, 2, *value);
        put_bytes(&mut summary, 1, &entry);
    }
    let mut event = Vec::new();
    put_double(&mut event, 1, wall_time);
    if step != 0 {
        put_varint(&mut event, 2 << 3);
        put_varint(&mut event, step);
    }
    put_bytes(&mut event, 5, &summary);
    event
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

fn put_double(out: &mut Vec<u8>, field: u64, value: f64) {
    put_varint(out, field << 3 | 1);
    out.extend(value.to_le_bytes());
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the format has f32; more digits than a chart can show"
)]
fn put_float(out: &mut Vec<u8>, field: u64, value: f64) {
    put_varint(out, field << 3 | 5);
    out.extend((value as f32).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// A TFRecord.
fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked_crc(bytes).to_le_bytes());
    record
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: a few kilobytes per step need no table.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use osmosis_core::{JsonText, PolicyVersion};

    use super::*;

    #[test]
    fn the_checksum_is_castagnoli_s() {
        // The check value of the algorithm's definition.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn numbers_become_scalars_and_nothing_else_does() {
        let metrics = serde_json::json!({
            "step": 3, "loss": 0.5, "entropy": null, "skipped": "no variance",
            "eval/reward_ci95": [0.1, 0.2], "reward/mean": 1
        });
        assert_eq!(
            scalars(metrics.as_object().unwrap()),
            [("loss", 0.5), ("reward/mean", 1.0)]
        );
    }

    #[test]
    fn a_file_is_byte_for_byte_what_the_real_package_writes() {
        let folder = tempfile::tempdir().unwrap();
        let run = Utf8Path::from_path(folder.path()).unwrap();
        let step = |step: u64, metrics: &str| StepRecord {
            step,
            version: PolicyVersion(step),
            metrics: JsonText::parse(metrics).unwrap(),
            finished_at_ms: 1_700_000_000_500 + i64::try_from(step).unwrap() * 1000,
        };
        let steps = [
            step(0, r#"{"step":0,"eval/reward_mean":0.25}"#),
            step(300, r#"{"step":300,"reward/mean":0.5,"loss":-1.5}"#),
        ];
        EventFile::rewrite(run, &steps[..1]).unwrap();
        // Begun again, as a resume does: the earlier file is gone.
        let mut events = EventFile::rewrite(run, &steps[..1]).unwrap();
        events.append(&steps[1]).unwrap();
        let files: Vec<_> = run.join(FOLDER).read_dir_utf8().unwrap().collect();
        assert_eq!(files.len(), 1);
        let written = fs::read(files[0].as_ref().unwrap().path()).unwrap();
        let recorded = include_bytes!("../fixtures/tensorboard.tfevents");
        assert_eq!(written, recorded);
    }
}
