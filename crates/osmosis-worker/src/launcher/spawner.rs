use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use crate::guard::spawn;

/// Starts processes from one thread that lives as long as the pool. Workers ask the kernel to be
/// killed when their parent ends, and to the kernel the parent is the *thread* that started them:
/// started from a thread of the runtime, they would die with that thread.
#[derive(Debug)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<SpawnRequest>,
}

#[derive(Debug)]
struct SpawnRequest {
    command: Command,
    reply: oneshot::Sender<std::io::Result<Child>>,
}

impl Spawner {
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (requests, mut incoming) = mpsc::channel::<SpawnRequest>(16);
        std::thread::Builder::new()
            .name("osmosis-spawner".to_owned())
            .spawn(move || {
                while let Some(mut request) = incoming.blocking_recv() {
                    let _context = runtime.enter();
                    // A child that nobody waits for any more is killed by being dropped.
                    drop(request.reply.send(spawn(&mut request.command)));
                }
            })?;
        Ok(Self { requests })
    }

    pub(crate) async fn spawn(&self, command: Command) -> std::io::Result<Child> {
        let (reply, child) = oneshot::channel();
        let gone = || std::io::Error::other("the thread that starts processes has ended");
        self.requests
            .send(SpawnRequest { command, reply })
            .await
            .map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}
