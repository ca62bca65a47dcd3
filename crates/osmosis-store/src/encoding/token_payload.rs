//! The token records of a call as one payload, each with its length (`u32`, little endian) before it.

use bytes::{Buf as _, Bytes};

pub fn join_token_records(records: &[Bytes]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(records.iter().map(|record| record.len() + 4).sum());
    for record in records {
        // A payload that is too long for its length is refused before it is stored.
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        payload.extend_from_slice(&length.to_le_bytes());
        payload.extend_from_slice(record);
    }
    payload
}

/// The records in a payload; `None` when it is none.
pub fn part_token_records(mut payload: Bytes, count: usize) -> Option<Vec<Bytes>> {
    let mut records = Vec::new();
    while !payload.is_empty() {
        let length = usize::try_from(payload.try_get_u32_le().ok()?).ok()?;
        if length > payload.len() {
            return None;
        }
        records.push(payload.split_to(length));
    }
    (records.len() == count).then_some(records)
}
