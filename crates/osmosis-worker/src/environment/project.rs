//! A `pyproject.toml`, as far as it says what must be installed.

use std::str::FromStr;

use camino::Utf8Path;
use pep440_rs::VersionSpecifiers;
use pep508_rs::{ExtraName, Requirement, VerbatimUrl};
use toml_edit::{DocumentMut, Item, TableLike};

use super::error::EnvironmentError;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Project {
    /// As they are written; each is a requirement that parses.
    pub(super) dependencies: Vec<String>,
    pub(super) requires_python: Option<VersionSpecifiers>,
    /// By normalised name.
    pub(super) extras: Vec<(String, Vec<String>)>,
    pub(super) notes: Vec<String>,
}

impl Project {
    /// The packages of an extra, by its normalised name.
    pub(super) fn extra(&self, name: &str) -> Option<&[String]> {
        let (_, packages) = self.extras.iter().find(|(known, _)| known == name)?;
        Some(packages)
    }
}

/// Reads the file; `None` when there is none.
pub(super) fn read(file: &Utf8Path) -> Result<Option<Project>, EnvironmentError> {
    match std::fs::read_to_string(file) {
        Ok(text) => parse(file, &text).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EnvironmentError::io("can't read", file)(error)),
    }
}

pub(super) fn parse(file: &Utf8Path, text: &str) -> Result<Project, EnvironmentError> {
    let fail = |problems: Vec<String>| EnvironmentError::Project {
        file: file.to_owned(),
        problems,
    };
    let document = text
        .parse::<DocumentMut>()
        .map_err(|error| fail(error.to_string().lines().map(str::to_owned).collect()))?;
    let mut project = Project::default();
    let mut problems = Vec::new();
    if let Some(table) = table(document.get("project"), "project", &mut problems) {
        read_table(table, &mut project, &mut problems);
    }
    let sources = document
        .get("tool")
        .and_then(|tool| tool.get("uv"))
        .and_then(|uv| uv.get("sources"));
    if sources.is_some() {
        project.notes.push(
            "`[tool.uv.sources]` is not read; write the source into the dependency (`name @ file:///path`)"
                .to_owned(),
        );
    }
    if problems.is_empty() {
        Ok(project)
    } else {
        Err(fail(problems))
    }
}

fn read_table(table: &dyn TableLike, project: &mut Project, problems: &mut Vec<String>) {
    let dynamic = table.get("dynamic").and_then(Item::as_array);
    if dynamic.is_some_and(|names| {
        names
            .iter()
            .any(|name| name.as_str() == Some("dependencies"))
    }) {
        problems.push("`dependencies` must be listed, not `dynamic`".to_owned());
    }
    project.dependencies = requirements(table.get("dependencies"), "dependencies", problems);
    if let Some(item) = table.get("requires-python") {
        match item.as_str().map(VersionSpecifiers::from_str) {
            Some(Ok(specifiers)) => project.requires_python = Some(specifiers),
            Some(Err(error)) => problems.push(format!(
                "`requires-python` is not a version range: {}",
                first_line(&error.to_string())
            )),
            None => problems.push("`requires-python` must be a text".to_owned()),
        }
    }
    if let Some(extras) = self::table(
        table.get("optional-dependencies"),
        "optional-dependencies",
        problems,
    ) {
        for (name, item) in extras.iter() {
            let packages = requirements(Some(item), name, problems);
            let name = ExtraName::from_str(name)
                .map_or_else(|_| name.to_owned(), |normalised| normalised.to_string());
            project.extras.push((name, packages));
        }
    }
}

fn table<'a>(
    item: Option<&'a Item>,
    name: &str,
    problems: &mut Vec<String>,
) -> Option<&'a dyn TableLike> {
    let item = item?;
    let table = item.as_table_like();
    if table.is_none() {
        problems.push(format!("`{name}` must be a table"));
    }
    table
}

fn requirements(item: Option<&Item>, name: &str, problems: &mut Vec<String>) -> Vec<String> {
    let Some(item) = item else { return Vec::new() };
    let Some(array) = item.as_array() else {
        problems.push(format!("`{name}` must be an array of texts"));
        return Vec::new();
    };
    let mut requirements = Vec::new();
    for entry in array {
        let Some(text) = entry.as_str() else {
            problems.push(format!("`{name}` must be an array of texts"));
            continue;
        };
        match Requirement::<VerbatimUrl>::from_str(text) {
            Ok(_) => requirements.push(text.to_owned()),
            Err(error) => problems.push(format!(
                "`{text}` in `{name}` is not a requirement: {}",
                first_line(&error.to_string())
            )),
        }
    }
    requirements
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        match parse(Utf8Path::new("pyproject.toml"), text) {
            Err(EnvironmentError::Project { problems, .. }) => problems,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_must_be_installed_is_read() {
        let project = parse(
            Utf8Path::new("pyproject.toml"),
            r#"
            [project]
            name = "x"
            requires-python = ">=3.11"
            dependencies = ["numpy<3", "local @ file:///tmp/local", "a; python_version < '3.12'"]
            [project.optional-dependencies]
            Some_Extra = ["b"]
            "#,
        )
        .unwrap();
        assert_eq!(project.dependencies.len(), 3);
        assert_eq!(
            project.extras,
            [("some-extra".to_owned(), vec!["b".to_owned()])]
        );
        assert_eq!(project.requires_python.unwrap().to_string(), ">=3.11");
    }

    #[test]
    fn a_project_without_dependencies_is_fine() {
        let project = parse(Utf8Path::new("pyproject.toml"), "[tool.ruff]\n").unwrap();
        assert_eq!(project, Project::default());
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let problems = problems(
            r#"
            [project]
            requires-python = "three"
            dependencies = ["numpy<3", "not a requirement!", 7]
            "#,
        );
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("`not a requirement!`"));
        assert!(problems[2].contains("`requires-python`"));
    }

    #[test]
    fn broken_toml_is_told_with_its_place() {
        assert!(problems("[project\n")[0].contains("line 1"));
    }

    #[test]
    fn dependencies_that_only_a_build_could_tell_are_refused() {
        assert!(problems("[project]\ndynamic = ['dependencies']\n")[0].contains("dynamic"));
    }
}
