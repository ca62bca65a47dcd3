use async_trait::async_trait;

use crate::{Changes, Queue, Records, SharedRun, StoreError};

/// One run that is open: its queue, its records, and word of what changes in them.
#[async_trait]
pub trait Store: Queue + Records {
    /// Tells of changes from now on, so that whoever looks at the run, or waits for something to claim, need not look
    /// again and again.
    fn changes(&self) -> Changes;

    /// The run as one that several processes work on; `None` where one process has it alone.
    fn shared(&self) -> Option<&dyn SharedRun> {
        None
    }

    /// Makes everything queued durable and closes; later calls fail with `Closed`, except another
    /// `close`, which has nothing to do.
    async fn close(&self) -> Result<(), StoreError>;
}
