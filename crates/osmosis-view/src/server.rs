//! The viewer as a server: an address, its keys, and an end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind};
use tokio::net::TcpListener;

use crate::access::{self, Access};
use crate::api;
use crate::assets;
use crate::documents::Documents;
use crate::ending::ViewerEnd;
use crate::response;

/// How long open requests may take when all is over.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct ViewerOptions {
    pub workspace: Workspace,
    pub listen: SocketAddr,
}

/// A viewer that listens; requests wait until it [serves](Self::serve).
#[derive(Debug)]
pub struct Viewer {
    listener: TcpListener,
    address: SocketAddr,
    access: Arc<Access>,
    documents: Arc<Documents>,
    end: ViewerEnd,
}

impl Viewer {
    pub async fn listen(options: ViewerOptions) -> Result<Self, RunError> {
        let failed = |error: std::io::Error| {
            RunError::failed(
                RunErrorKind::Serve,
                format!("cannot listen on {}: {error}", options.listen),
            )
            .hint("choose another address with `--listen ADDR`; port 0 takes any free one")
        };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let mut address = listener.local_addr().map_err(failed)?;
        let loopback = address.ip().is_loopback();
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        Ok(Self {
            listener,
            address,
            access: Arc::new(Access::new(address.port(), loopback)),
            documents: Arc::new(Documents::new(options.workspace)),
            end: ViewerEnd::new(),
        })
    }

    /// The address that opens the page once, at a path like `/runs/NAME`.
    pub fn url(&self, path: &str) -> String {
        let key = self.access.one_time_key();
        format!("http://{}{path}?key={key}", self.address)
    }

    /// For `Authorization: Bearer`, until the viewer ends.
    pub fn api_key(&self) -> &str {
        self.access.api_key()
    }

    /// What ends it from elsewhere.
    pub fn end(&self) -> ViewerEnd {
        self.end.clone()
    }

    /// Answers until `stopped`, or until its [end](Self::end).
    pub async fn serve(self, stopped: impl Future<Output = ()>) -> Result<(), RunError> {
        let stop = self.end.stop.clone();
        let router = router(self.documents, self.access, self.end);
        let ended = stop.clone();
        let serving = axum::serve(self.listener, router)
            .with_graceful_shutdown(async move { ended.cancelled().await });
        let late = async {
            tokio::select! {
                () = stopped => stop.cancel(),
                () = stop.cancelled() => {}
            }
            tokio::time::sleep(LAST_REQUESTS).await;
        };
        tokio::select! {
            served = serving => served.map_err(|error| {
                RunError::failed(RunErrorKind::Serve, format!("the viewer ended: {error}"))
            }),
            () = late => Ok(()),
        }
    }
}

fn router(documents: Arc<Documents>, access: Arc<Access>, end: ViewerEnd) -> Router {
    Router::new()
        .nest("/api/v1", api::router(documents, end))
        .route("/api/{*rest}", get(api::unknown))
        .route("/assets/{*name}", get(assets::asset))
        .fallback(get(assets::page))
        .layer(from_fn_with_state(access, access::guard))
        .layer(from_fn(response::secure))
}
