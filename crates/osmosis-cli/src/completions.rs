//! `osmosis completions`.

use std::io::Write as _;

use clap::CommandFactory;

pub(crate) fn run(shell: clap_complete::Shell) {
    let mut command = crate::arguments::Arguments::command();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "osmosis", &mut script);
    // The reader may have gone (`| head`), which is no error; the generator itself would panic.
    let _ = std::io::stdout().write_all(&script);
}
