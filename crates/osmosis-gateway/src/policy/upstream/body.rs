//! The body of a reply, by whichever client it comes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::direct::DirectBody;
use super::endpoint::Unsent;
use super::reply::error_chain;

/// A reply as it comes.
pub(super) enum UpstreamBody {
    Direct(DirectBody),
    General(reqwest::Body),
}

/// A reply that broke.
pub(super) enum Broken {
    Direct(hyper::Error),
    General(reqwest::Error),
}

impl From<Broken> for Unsent {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Direct(error) => Self {
                connected: true,
                message: error_chain(&error),
            },
            Broken::General(error) => Self::by_reqwest(error),
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Direct(body) => Pin::new(body).poll_frame(context).map_err(Broken::Direct),
            Self::General(body) => Pin::new(body).poll_frame(context).map_err(Broken::General),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Direct(body) => body.is_end_stream(),
            Self::General(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Direct(body) => body.size_hint(),
            Self::General(body) => body.size_hint(),
        }
    }
}
