//! Frames over a stream.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use osmosis_core::frame::{self, FrameError, MAX_FRAME_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec, LengthDelimitedCodecError};

type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// The receiving end of a connection.
pub(super) struct FrameReader(FramedRead<ReadHalf, LengthDelimitedCodec>);

/// Why no frame came.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The other side closed, or the connection broke.
    Closed,
    /// What came is not a frame.
    NotAFrame(String),
}

impl FrameReader {
    /// Accepts frames up to `limit` bytes.
    pub(super) fn new(stream: ReadHalf, limit: usize) -> Self {
        let codec = LengthDelimitedCodec::builder()
            .length_field_type::<u32>()
            .max_frame_length(limit)
            .new_codec();
        Self(FramedRead::new(stream, codec))
    }

    /// From now on accepts what the protocol allows.
    pub(super) fn accept_full_size(&mut self) {
        self.0.decoder_mut().set_max_frame_length(MAX_FRAME_BYTES);
    }

    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<T, ReadError> {
        match self.0.next().await {
            None => Err(ReadError::Closed),
            Some(Ok(body)) => {
                frame::decode(&body).map_err(|error| ReadError::NotAFrame(error.to_string()))
            }
            Some(Err(error)) => {
                let oversized = error.get_ref().is_some_and(
                    <dyn std::error::Error + Send + Sync>::is::<LengthDelimitedCodecError>,
                );
                if oversized {
                    Err(ReadError::NotAFrame(format!(
                        "a frame is over the limit of {} bytes",
                        self.0.decoder().max_frame_length()
                    )))
                } else {
                    Err(ReadError::Closed)
                }
            }
        }
    }

    /// The stream, and what was already read of it beyond the last frame.
    pub(super) fn into_raw(self) -> (ReadHalf, BytesMut) {
        let parts = self.0.into_parts();
        (parts.io, parts.read_buf)
    }
}

impl fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader").finish_non_exhaustive()
    }
}

/// A whole frame, its length in front.
pub(super) fn frame_bytes<T: Serialize>(frame: &T) -> Result<Bytes, FrameError> {
    let body = frame::encode(frame)?;
    let length =
        u32::try_from(body.len()).map_err(|_| FrameError::TooLarge { bytes: body.len() })?;
    let mut bytes = BytesMut::with_capacity(4 + body.len());
    bytes.put_u32(length);
    bytes.put_slice(&body);
    Ok(bytes.freeze())
}

/// Writes what is queued until the queue or the connection ends. Whoever reads the connection
/// learns of a broken one, so there is nothing to tell here.
pub(super) async fn write_frames(stream: WriteHalf, mut queue: mpsc::Receiver<Bytes>) {
    let mut stream = BufWriter::new(stream);
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, 32).await > 0 {
        for frame in batch.drain(..) {
            if stream.write_all(&frame).await.is_err() {
                return;
            }
        }
        if stream.flush().await.is_err() {
            return;
        }
    }
}
