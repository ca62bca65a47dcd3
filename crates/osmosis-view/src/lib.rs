//! HTTP around recorded runs: the viewer's API and its page.
//!
//! [`Viewer`] serves the runs of a workspace, live ones included, to a browser and to programs; [`export`] writes a
//! static copy. Everything is read: this crate never writes to a run. (The index of a search is a file beside it that
//! can be deleted at any time.) Every route needs a key, and the page loads nothing from elsewhere.

mod access;
mod api;
mod artifact_file;
mod assets;
mod documents;
mod ending;
pub mod export;
mod listing;
mod response;
mod run_cache;
mod server;

pub use ending::ViewerEnd;
pub use server::{Viewer, ViewerOptions};
