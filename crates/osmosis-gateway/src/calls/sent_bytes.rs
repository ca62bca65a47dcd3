//! What of a stream has gone to the caller.

use bytes::{Bytes, BytesMut};
use osmosis_store::Pieces;

// Thousands of streams grow side by side: a buffer that doubles would leave half of it unused in each. Blocks
// that grow with what is there leave less than a quarter.
const FIRST_BLOCK_BYTES: usize = 1024;
const LARGEST_BLOCK_BYTES: usize = 64 << 10;

/// Bytes that come in small pieces and are wanted in few in the end.
#[derive(Debug, Default)]
pub(crate) struct SentBytes {
    full: Vec<Bytes>,
    last: BytesMut,
    length: usize,
}

impl SentBytes {
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len();
        while !bytes.is_empty() {
            let room = self.last.capacity() - self.last.len();
            if room == 0 {
                let stored = self.length - bytes.len();
                let block = (stored / 4).next_multiple_of(FIRST_BLOCK_BYTES);
                let block = block.clamp(FIRST_BLOCK_BYTES, LARGEST_BLOCK_BYTES);
                let full = std::mem::replace(&mut self.last, BytesMut::with_capacity(block));
                if !full.is_empty() {
                    self.full.push(full.freeze());
                }
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.last.extend_from_slice(now);
            bytes = later;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn pieces(mut self) -> Pieces {
        self.full.push(self.last.freeze());
        self.full.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_come_out_whole() {
        for sizes in [
            &[][..],
            &[1],
            &[FIRST_BLOCK_BYTES],
            &[FIRST_BLOCK_BYTES + 1, 3],
            &[100, 5 * LARGEST_BLOCK_BYTES, 0, 7],
            &[240; 67],
        ] {
            let mut passed = SentBytes::default();
            let mut expected = Vec::new();
            for (piece, &size) in sizes.iter().enumerate() {
                let bytes = vec![u8::try_from(piece % 251).unwrap(); size];
                passed.push(&bytes);
                expected.extend_from_slice(&bytes);
            }
            assert_eq!(passed.len(), expected.len(), "{sizes:?}");
            assert_eq!(passed.pieces().joined(), expected, "{sizes:?}");
        }
    }
}
