//! `osmosis completions`.

use clap::CommandFactory;

pub(crate) fn run(shell: clap_complete::Shell) {
    let mut command = crate::arguments::Arguments::command();
    clap_complete::generate(shell, &mut command, "osmosis", &mut std::io::stdout());
}
