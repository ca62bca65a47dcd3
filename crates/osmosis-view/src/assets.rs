//! The files of the page. They are part of the binary; a debug build reads them from the source tree, so that the
//! page can be worked on without compiling.

use std::borrow::Cow;

use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "web"]
#[include = "*.js"]
#[include = "*.css"]
#[include = "*.html"]
#[include = "*.svg"]
#[exclude = "*.test.js"]
#[exclude = "types/*"]
struct Web;

const SHELL: &str = "index.html";

/// How the page finds its files and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// From the viewer, by absolute addresses.
    Served,
    /// From files beside it, by relative ones.
    Exported,
}

/// The names of all files but the shell.
pub(crate) fn names() -> impl Iterator<Item = Cow<'static, str>> {
    Web::iter().filter(|name| name != SHELL)
}

pub(crate) fn file(name: &str) -> Option<Cow<'static, [u8]>> {
    if cfg!(debug_assertions) && Web::get(name).is_some() {
        let path = format!("{}/web/{name}", env!("CARGO_MANIFEST_DIR"));
        if let Ok(bytes) = std::fs::read(path) {
            return Some(Cow::Owned(bytes));
        }
    }
    Web::get(name).map(|file| file.data)
}

/// The one document that all pages are.
pub(crate) fn shell(mode: Mode) -> String {
    let shell = file(SHELL).unwrap_or_default();
    let (base, word) = match mode {
        Mode::Served => ("/", "served"),
        Mode::Exported => ("", "exported"),
    };
    // The modules are known now; loading them one import after another would take a round trip for each level.
    let mut preloads = String::new();
    for name in names().filter(|name| name.ends_with(".js")) {
        preloads.push_str("<link rel=\"modulepreload\" href=\"");
        preloads.push_str(base);
        preloads.push_str("assets/");
        preloads.push_str(&name);
        preloads.push_str("\">\n");
    }
    String::from_utf8_lossy(&shell)
        .replace("<!--preloads-->", preloads.trim_end())
        .replace("{{base}}", base)
        .replace("{{mode}}", word)
}

pub(crate) async fn page() -> Response {
    let content_type = HeaderValue::from_static("text/html; charset=utf-8");
    ([(CONTENT_TYPE, content_type)], shell(Mode::Served)).into_response()
}

pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(bytes) = file(&name).filter(|_| name != SHELL) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let etag = Web::get(&name).map(|file| {
        let digest = u128::from_be_bytes(
            file.metadata.sha256_hash()[..16]
                .try_into()
                .unwrap_or_default(),
        );
        format!("\"{digest:032x}\"")
    });
    // A debug build's files may be newer than what was embedded.
    let etag = etag.filter(|_| !cfg!(debug_assertions)).unwrap_or_default();
    if !etag.is_empty()
        && headers
            .get(IF_NONE_MATCH)
            .is_some_and(|it| it == etag.as_str())
    {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let mut answer = bytes.into_owned().into_response();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(&name)));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    answer
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
