use async_trait::async_trait;

use crate::{Changes, Queue, Records, StoreError};

/// One run that is open: its queue, its records, and word of what changes in them.
#[async_trait]
pub trait Store: Queue + Records {
    /// Tells of changes from now on, so that whoever looks at the run, or waits for something to claim, need not look
    /// again and again.
    fn changes(&self) -> Changes;

    /// Makes everything queued durable and closes; later calls fail with `Closed`, except another
    /// `close`, which has nothing to do.
    async fn close(&self) -> Result<(), StoreError>;
}
