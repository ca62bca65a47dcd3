//! How a stream ends.

use super::{Happening, RolloutStream};
use crate::TrainError;

impl RolloutStream {
    /// Ends what still runs, down to its model calls, and waits until it has ended.
    pub(crate) async fn finish(mut self) -> Result<(), TrainError> {
        for id in self.running.keys() {
            self.engine.cancel(id).await?;
        }
        self.stop.drain.cancel();
        self.wake.notify_one();
        loop {
            if let Happening::Ended(result) = self.next().await {
                return Ok(result?);
            }
        }
    }

    /// Ends everything at once, after an error, and waits until it has ended. What it was about is known.
    pub(crate) async fn abandon(mut self) {
        self.stop.drain.cancel();
        self.stop.now.cancel();
        self.wake.notify_one();
        // Nobody listens: the engine must not wait for that.
        self.events.close();
        while self.serving.join_next().await.is_some() {}
    }
}
