//! Variables that hold a model's key or address and were not passed to user code: named, so that a judge that
//! misses its key is understood at once. Values are never looked at.

use std::collections::BTreeMap;

use osmosis_worker::variables;

use crate::{RunError, RunErrorKind};

/// The names, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Withheld(pub Vec<String>);

impl Withheld {
    /// Of our environment, without what the config or the command line passes.
    pub fn of_environment<'a>(passed: impl IntoIterator<Item = &'a str>) -> Self {
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        Self(variables::withheld(set, passed))
    }

    /// What a report says about them; `remedy` is how they are passed.
    pub fn text(&self, remedy: &str) -> Option<String> {
        let (names, them) = match &*self.0 {
            [] => return None,
            [name] => (name.clone(), "it"),
            names => (names.join(", "), "them"),
        };
        Some(format!(
            "{names}: set here and not passed to your code; pass {them} with {remedy}"
        ))
    }

    /// The error with a hint when what the user's code said names one of them.
    pub fn explain(&self, error: RunError, remedy: &str) -> RunError {
        let told = |name: &&String| {
            error.message().contains(name.as_str())
                || error.detail_values().to_string().contains(name.as_str())
        };
        let named: Vec<String> = self.0.iter().filter(told).cloned().collect();
        match Self(named).text(remedy) {
            Some(text) => error.hint(text),
            None => error,
        }
    }
}

/// How a config passes a variable.
pub const IN_CONFIG: &str = "`[secrets] optional = [NAME]`";

/// How `osmosis serve` does.
pub const BY_ARGUMENT: &str = "`--pass-env NAME`";

/// The values of the variables that are to be passed; the error names one that is not set or never passed.
pub fn passed_variables(names: &[String]) -> Result<BTreeMap<String, String>, RunError> {
    let mut found = BTreeMap::new();
    for name in names {
        if variables::is_ours(name) {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                format!(
                    "--pass-env: `{name}` is never passed: names that start with `OSMOSIS_` are reserved"
                ),
            ));
        }
        let value = std::env::var(name).map_err(|_| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("--pass-env: `{name}` is not set"),
            )
        })?;
        found.insert(name.clone(), value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_with_the_remedy_and_only_where_they_matter() {
        let withheld = Withheld(vec!["A_API_KEY".to_owned(), "B_BASE_URL".to_owned()]);
        assert_eq!(
            withheld.text(IN_CONFIG).unwrap(),
            "A_API_KEY, B_BASE_URL: set here and not passed to your code; pass them with `[secrets] optional = [NAME]`"
        );
        assert_eq!(Withheld::default().text(IN_CONFIG), None);
        let error = |message: &str| RunError::failed(RunErrorKind::EntrypointInvalid, message);
        let explained = withheld.explain(error("KeyError: 'A_API_KEY'"), IN_CONFIG);
        assert!(
            explained
                .hint_text()
                .unwrap()
                .starts_with("A_API_KEY: set here")
        );
        assert_eq!(
            withheld
                .explain(error("KeyError: 'C'"), IN_CONFIG)
                .hint_text(),
            None
        );
    }
}
