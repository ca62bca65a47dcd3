//! The command line that is being completed, as the shell handed it over.

use camino::Utf8PathBuf;
use osmosis_run::workspace::{Workspace, WorkspaceChoice};

/// The words so far, without the program. The last one may be unfinished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    /// Neither options nor their values.
    positional: Vec<String>,
    workspace: Option<Utf8PathBuf>,
}

impl Words {
    /// From the arguments of this process: `osmosis -- osmosis eval show …`.
    pub(super) fn typed() -> Self {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self::of(words.skip_while(|word| word != "--").skip(2))
    }

    /// Whether an option is being typed.
    pub(super) fn current_is_option() -> bool {
        let current = std::env::args_os().next_back();
        current.is_some_and(|word| word.to_string_lossy().starts_with('-'))
    }

    fn of(words: impl Iterator<Item = String>) -> Self {
        let mut positional = vec![];
        let mut workspace = None;
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            if let Some(folder) = word.strip_prefix("--workspace=") {
                workspace = Some(folder.to_owned());
            } else if word == "--workspace" {
                workspace = words.next();
            } else if !word.starts_with('-') {
                positional.push(word);
            }
        }
        Self {
            positional,
            workspace: workspace.map(Utf8PathBuf::from),
        }
    }

    pub(super) fn workspace(&self) -> Option<Workspace> {
        WorkspaceChoice::new(self.workspace.clone(), None)
            .ok()?
            .find(None)
            .ok()
    }

    /// The first argument of a command of two words: `x` of `eval show x`.
    pub(super) fn first_argument(&self) -> Option<&str> {
        self.positional.get(2).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_is_found_beside_options_and_so_is_the_workspace() {
        let words = |text: &str| Words::of(text.split(' ').map(str::to_owned));
        let typed = words("--json eval show --workspace w a ");
        assert_eq!(typed.first_argument(), Some("a"));
        assert_eq!(typed.workspace, Some("w".into()));
        assert_eq!(
            words("eval show --workspace=x a 3").workspace,
            Some("x".into())
        );
        assert_eq!(words("eval show").first_argument(), None);
    }
}
