use async_trait::async_trait;

use crate::{Authenticity, Changes, MissingKey, Queue, Records, SharedRun, StoreError};

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

    /// Whether what is read was written by who has the key of the run. Where it was, whatever is read is compared with its
    /// authentication code, and `Altered` names what does not fit.
    fn authenticity(&self) -> Authenticity {
        Authenticity::Unauthenticated(MissingKey::NoMacs)
    }

    /// Makes everything queued durable and closes; later calls fail with `Closed`, except another
    /// `close`, which has nothing to do.
    async fn close(&self) -> Result<(), StoreError>;
}
