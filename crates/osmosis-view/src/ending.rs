//! How a viewer ends: open pages are told first, and may take a last look.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long pages may take for their last look.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// The end of a viewer, for whoever serves, whoever streams, and whoever decides.
#[derive(Debug, Clone)]
pub struct ViewerEnd {
    /// Pages take a last look.
    ending: CancellationToken,
    /// All is over.
    pub(crate) stop: CancellationToken,
    open_streams: Arc<watch::Sender<usize>>,
}

/// What a stream of events is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The page can still read what it shows.
    LastLook,
    Over,
}

impl ViewerEnd {
    pub(crate) fn new() -> Self {
        Self {
            ending: CancellationToken::new(),
            stop: CancellationToken::new(),
            open_streams: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Lets open pages read the state that stays, then ends the viewer. Without an open page it ends at once.
    pub async fn end_after_last_look(&self) {
        self.ending.cancel();
        let mut open = self.open_streams.subscribe();
        // A page that does not let go, such as one in a background tab, keeps nobody.
        let _ = tokio::time::timeout(LAST_LOOK, open.wait_for(|open| *open == 0)).await;
        self.stop.cancel();
    }

    /// Waits for the end, of either kind.
    pub(crate) async fn ended(&self) -> Ended {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Ended::Over,
            () = self.ending.cancelled() => Ended::LastLook,
        }
    }

    /// Counts as an open page until it is dropped.
    pub(crate) fn open_stream(&self) -> OpenStream {
        self.open_streams.send_modify(|open| *open += 1);
        OpenStream(Arc::clone(&self.open_streams))
    }
}

#[derive(Debug)]
pub(crate) struct OpenStream(Arc<watch::Sender<usize>>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_open_pages_but_not_for_ever() {
        let end = ViewerEnd::new();
        end.end_after_last_look().await;
        assert_eq!(end.ended().await, Ended::Over, "no page is open");

        let end = ViewerEnd::new();
        let page = end.open_stream();
        let ending = end.clone();
        let ended = tokio::spawn(async move { ending.end_after_last_look().await });
        assert_eq!(end.ended().await, Ended::LastLook);
        drop(page);
        ended.await.unwrap();
        assert_eq!(end.ended().await, Ended::Over);

        let end = ViewerEnd::new();
        let _kept = end.open_stream();
        let began = tokio::time::Instant::now();
        end.end_after_last_look().await;
        assert_eq!(began.elapsed(), LAST_LOOK);
    }
}
