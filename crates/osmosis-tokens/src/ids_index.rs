//! Finds the earlier texts, in ids, that begin another.

use std::collections::BTreeMap;

/// Texts by length and hash.
#[derive(Debug, Default)]
pub(crate) struct IdsIndex {
    by_length: BTreeMap<usize, Vec<(u64, usize)>>,
    indexed: usize,
}

impl IdsIndex {
    /// How many texts were put in.
    pub(crate) fn indexed(&self) -> usize {
        self.indexed
    }

    pub(crate) fn insert(&mut self, ids: &[u32], place: usize) {
        let hash = ids.iter().fold(0, |hash, id| step(hash, *id));
        self.by_length
            .entry(ids.len())
            .or_default()
            .push((hash, place));
        self.indexed += 1;
    }

    /// The places of those that seem to begin `ids`, the longest first, of equals the latest.
    pub(crate) fn begin(&self, ids: &[u32]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut hash = 0;
        let mut at = 0;
        for (length, texts) in self.by_length.range(..=ids.len()) {
            hash = ids[at..*length]
                .iter()
                .fold(hash, |hash, id| step(hash, *id));
            at = *length;
            let same = texts.iter().filter(|(other, _)| *other == hash);
            found.extend(same.map(|(_, place)| *place));
        }
        found.reverse();
        found
    }
}

/// FNV-1a over whole ids.
fn step(hash: u64, id: u32) -> u64 {
    (hash ^ 0xcbf2_9ce4_8422_2325 ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_comes_first() {
        let mut index = IdsIndex::default();
        for (place, ids) in [&[1, 2][..], &[1, 2, 3, 4], &[1, 3], &[1, 2, 3, 4], &[]]
            .iter()
            .enumerate()
        {
            index.insert(ids, place);
        }
        assert_eq!(index.indexed(), 5);
        assert_eq!(index.begin(&[1, 2, 3, 4, 5]), [3, 1, 0, 4]);
        assert_eq!(index.begin(&[1, 2, 3]), [0, 4]);
        assert_eq!(index.begin(&[2]), [4]);
    }

    #[test]
    fn texts_that_differ_in_one_id_are_told_apart() {
        let mut index = IdsIndex::default();
        let texts = [0, 7, u32::MAX].map(|first| (0..300).map(move |id| [first, id]));
        for (place, ids) in texts.clone().into_iter().flatten().enumerate() {
            index.insert(&ids, place);
        }
        for (place, ids) in texts.into_iter().flatten().enumerate() {
            assert_eq!(index.begin(&ids), [place], "{ids:?}");
        }
    }
}
