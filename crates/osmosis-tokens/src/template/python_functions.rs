//! What templates expect of Python: its JSON, its methods of texts, its dates.

use minijinja::value::{Kwargs, Value as TemplateValue};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::python_json::{self, Style};

pub(super) fn date_text(formatted: Result<String, jiff::Error>) -> Result<String, Error> {
    formatted.map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {error}"),
        )
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands arguments over by value"
)]
pub(super) fn tojson(value: &TemplateValue, options: Kwargs) -> Result<String, Error> {
    let mut style = Style::default();
    if let Some(yes) = options.get::<Option<bool>>("ensure_ascii")? {
        style.ensure_ascii = yes;
    }
    if let Some(yes) = options.get::<Option<bool>>("sort_keys")? {
        style.sort_keys = yes;
    }
    if let Some(indent) = options.get::<Option<TemplateValue>>("indent")?
        && !indent.is_none()
    {
        style.indent = Some(match usize::try_from(indent.clone()) {
            Ok(spaces) => " ".repeat(spaces.min(64)),
            Err(_) => indent.to_string(),
        });
        ",".clone_into(&mut style.item_separator);
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|_| {
            Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators are two texts",
            )
        })?;
        style.item_separator = item;
        style.key_separator = key;
    }
    options.assert_all_used()?;
    python_json::dumps(value, &style)
}

/// Python's methods: what `minijinja-contrib` has, and the ones it lacks that templates use.
pub(super) fn method(
    state: &mut State,
    value: &TemplateValue,
    name: &str,
    arguments: &[TemplateValue],
) -> Result<TemplateValue, Error> {
    if let Some(text) = value.as_str() {
        let argument = arguments.first().and_then(TemplateValue::as_str);
        match (name, argument) {
            ("removeprefix", Some(prefix)) => {
                return Ok(text.strip_prefix(prefix).unwrap_or(text).into());
            }
            ("removesuffix", Some(suffix)) => {
                return Ok(text.strip_suffix(suffix).unwrap_or(text).into());
            }
            ("partition", Some(by)) if !by.is_empty() => {
                let parts = text.split_once(by);
                return Ok(three(parts.map_or([text, "", ""], |(a, b)| [a, by, b])));
            }
            ("rpartition", Some(by)) if !by.is_empty() => {
                let parts = text.rsplit_once(by);
                return Ok(three(parts.map_or(["", "", text], |(a, b)| [a, by, b])));
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, arguments)
}

fn three(parts: [&str; 3]) -> TemplateValue {
    parts.into_iter().map(TemplateValue::from).collect()
}
