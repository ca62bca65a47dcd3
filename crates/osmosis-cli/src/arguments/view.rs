//! What `osmosis view` takes.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::Args;

/// Look at runs in a browser
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  osmosis view\n  osmosis view multiply-20260101-120000\n  osmosis view multiply-20260101-120000 --export site\n\nThe printed address works once; the browser keeps a cookie. Programs send the API key as\n`Authorization: Bearer KEY`. Both end with the command. docs/view.md describes the pages and the API."
)]
pub(crate) struct ViewArguments {
    /// Run whose page opens: NAME or KIND/NAME; several with `--export` [default: the list of runs]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,

    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// Open a browser, also without a terminal
    #[arg(long, conflicts_with = "no_open")]
    pub(crate) open: bool,

    /// Open no browser
    #[arg(long)]
    pub(crate) no_open: bool,

    /// Write a static copy of the runs into this folder instead, for any web server; several runs are compared
    #[arg(long, value_name = "DIR", requires = "runs")]
    pub(crate) export: Option<Utf8PathBuf>,

    /// With `--export`: file of NAME=VALUE lines whose values are redacted, besides the config's [secrets]
    #[arg(long, value_name = "FILE", requires = "export")]
    pub(crate) secrets_file: Option<Utf8PathBuf>,
}
