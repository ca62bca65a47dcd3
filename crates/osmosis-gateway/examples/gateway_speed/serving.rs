//! Serves HTTP/1 on a free port of loopback.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::Outcome;

/// Answers requests.
pub(crate) trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
}

/// Prints the address, then serves until the process is killed.
#[expect(
    clippy::print_stdout,
    reason = "whoever started this waits for the address"
)]
pub(crate) async fn serve(service: impl Answers) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let service = Arc::new(service);
    let connections = TaskTracker::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let service = Arc::clone(&service);
        connections.spawn(async move {
            let answers = service_fn(move |request| {
                let service = Arc::clone(&service);
                async move { Ok::<_, Infallible>(service.answer(request).await) }
            });
            // A caller that hangs up is none of our concern.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(socket), answers)
                .await;
        });
    }
}
