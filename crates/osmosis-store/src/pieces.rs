use bytes::Bytes;

/// A body in the pieces it came in. The answer of a stream is stored without being put together: at the end of
/// thousands of streams that would take as much memory again as all their answers.
#[derive(Debug, Clone, Default)]
pub struct Pieces(Vec<Bytes>);

impl Pieces {
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// All of it in one piece; a copy unless it is in one already.
    pub fn joined(&self) -> Bytes {
        match &self.0[..] {
            [] => Bytes::new(),
            [whole] => whole.clone(),
            pieces => pieces.concat().into(),
        }
    }

    /// The pieces, in order.
    pub fn slices(&self) -> Vec<&[u8]> {
        self.0.iter().map(|piece| &piece[..]).collect()
    }
}

impl<B: Into<Bytes>> From<B> for Pieces {
    fn from(whole: B) -> Self {
        Self(vec![whole.into()])
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        Self(pieces.into_iter().collect())
    }
}

/// By what they say, however it is divided.
impl PartialEq for Pieces {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.0.iter().flatten().eq(other.0.iter().flatten())
    }
}

impl<B: AsRef<[u8]> + ?Sized> PartialEq<B> for Pieces {
    fn eq(&self, other: &B) -> bool {
        self.joined() == other.as_ref()
    }
}
