//! What a person who wrote an unknown name probably meant.

use super::ConfigKind;
use super::error::listed;
use super::schema::{SECTIONS, Section};

/// For a key that `section` (`None`: the top of the file) does not have.
pub(super) fn for_key(kind: ConfigKind, section: Option<&Section>, key: &str) -> Option<String> {
    let ours = || SECTIONS.iter().filter(|section| section.is_of(kind));
    if let Some(home) = ours().find(|section| section.keys().contains(&key)) {
        return Some(format!("`{key}` belongs in `[{}]`", home.name));
    }
    if let Some(section) = section
        && let Some(near) = nearest(key, section.keys())
    {
        return Some(format!("did you mean `{near}`?"));
    }
    let elsewhere =
        ours().find_map(|other| nearest(key, other.keys()).map(|near| (other.name, near)));
    if let Some((other, near)) = elsewhere {
        return Some(format!("did you mean `{near}` in `[{other}]`?"));
    }
    if let Some(home) = SECTIONS.iter().find(|other| other.keys().contains(&key))
        && let Some(other) = kind.others().into_iter().find(|kind| home.is_of(*kind))
    {
        return Some(format!("`{key}` belongs in `[{}]` of {other}", home.name));
    }
    let section = section?;
    Some(format!(
        "`[{}]` takes {}",
        section.name,
        listed(section.keys().iter().copied(), "and")
    ))
}

/// For a section that this kind of config does not have.
pub(super) fn for_section(kind: ConfigKind, name: &str) -> String {
    if let Some(section) = SECTIONS.iter().find(|section| section.name == name) {
        if section.is_of(kind) {
            // It stands there in quotes, as one name with a dot in it.
            return format!("write `[{name}]`, without quotes");
        }
        let own = name.split_once('.').and_then(|(_, inner)| {
            let own = format!("{}.{inner}", kind.section());
            SECTIONS.iter().find(|other| other.name == own)
        });
        if let Some(own) = own.filter(|own| own.is_of(kind)) {
            return format!("in {kind} it is `[{}]`", own.name);
        }
        let home = kind.others().into_iter().find(|kind| section.is_of(*kind));
        let home = home.map_or_else(|| "another config".to_owned(), |kind| kind.to_string());
        return format!("it belongs in {home}; remove it here");
    }
    let names = || SECTIONS.iter().filter(|s| s.is_of(kind)).map(|s| s.name);
    match nearest(name, &names().collect::<Vec<_>>()) {
        Some(near) => format!("did you mean `[{near}]`?"),
        None => format!("the sections are {}", listed(names(), "and")),
    }
}

/// Other people's words for our keys, where the two don't look alike.
const SYNONYMS: &[(&str, &str)] = &[("learning_rate", "lr"), ("num_epochs", "total_epochs")];

/// The name that differs from `text` by a slip of the fingers, or that `text` is the better part of.
fn nearest<'a>(text: &str, names: &[&'a str]) -> Option<&'a str> {
    let text = text.to_lowercase().replace('-', "_");
    let find = |fits: &dyn Fn(&str) -> bool| names.iter().copied().find(|name| fits(name));
    let within = |most: usize| {
        names
            .iter()
            .map(|name| (strsim::damerau_levenshtein(&text, name), *name))
            .filter(|(distance, name)| {
                *distance <= most && *distance <= name.len().min(text.len()) / 3
            })
            .min_by_key(|(distance, _)| *distance)
            .map(|(_, name)| name)
    };
    let has_every_word = |name: &str| {
        text.split('_')
            .all(|word| name.split('_').any(|part| part == word))
    };
    // Short texts are part of everything.
    let part_of = |name: &str| text.len() >= 4 && name.contains(&text);
    find(&|name| SYNONYMS.contains(&(&text, name)))
        .or_else(|| within(2))
        .or_else(|| find(&has_every_word))
        .or_else(|| within(usize::MAX))
        .or_else(|| find(&part_of))
}
