//! From what a node is started with to a run that it has joined.

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_store::{
    Catalogue, RunKey, RunKind, RunRecord, RunStatus, Store, StoreError, StoreUrl,
};

use super::metrics::MetricsOptions;
use super::token::JoinToken;
use crate::notices::Notices;
use crate::runs::{Pinned, RunReference, kind_word, stores};
use crate::settings::Throughput;
use crate::{RunError, RunErrorKind};

/// What a node is started with.
#[derive(Debug)]
pub struct NodeRequest {
    pub store: StoreUrl,
    /// `NAME` or `KIND/NAME`; the token names the run where there is none.
    pub run: Option<String>,
    pub token: Option<JoinToken>,
    pub throughput: Throughput,
    pub secrets_file: Option<Utf8PathBuf>,
    /// Where Prometheus finds the numbers of this node.
    pub metrics: Option<MetricsOptions>,
}

/// Finds the run, and joins it.
pub(super) async fn join(
    request: &NodeRequest,
    notices: &Arc<dyn Notices>,
) -> Result<(RunKey, Arc<dyn Store>), RunError> {
    let url = match &request.token {
        Some(token) => request
            .store
            .with_credentials(&token.role, token.password())?,
        None => request.store.clone(),
    };
    if !url.is_postgres() {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            format!("`{url}` has no nodes: `--store` takes `postgres://HOST/DATABASE`"),
        ));
    }
    notices.step(format_args!("Joining the run at {}", request.store));
    let catalogue = stores::catalogue_at(url)?;
    let explained = |error: StoreError| {
        match (&error, &request.token) {
        (StoreError::Denied { .. }, Some(_)) => RunError::from(error).hint(
            "the token is of another database, or its run was deleted; copy the command that the controller printed last",
        ),
        (_, _) => error.into(),
    }
    };
    let run = find(request, &*catalogue)
        .await
        .map_err(|error| match error {
            Finding::Store(error) => explained(error),
            Finding::Run(error) => *error,
        })?;
    let store = catalogue.join(&run).await.map_err(explained)?;
    Ok((run, store))
}

enum Finding {
    Store(StoreError),
    Run(Box<RunError>),
}

impl From<StoreError> for Finding {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RunError> for Finding {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

/// The run that is meant.
async fn find(request: &NodeRequest, catalogue: &dyn Catalogue) -> Result<RunKey, Finding> {
    let (text, kinds) = match (&request.run, &request.token) {
        (None, None) => {
            let error = RunError::usage(RunErrorKind::Usage, "which run? `--run` names it");
            return Err(error
                .hint("give `--run NAME`, or a token with `--join`")
                .into());
        }
        (None, Some(token)) => (token.run.to_string(), vec![token.kind]),
        (Some(text), token) => {
            let reference = RunReference::parse(text)?;
            if let Some(token) = token {
                check_token(token, &reference)?;
            }
            let kinds = match (reference.kind, token) {
                (Some(kind), _) => vec![kind],
                (None, Some(token)) => vec![token.kind],
                (None, None) => vec![RunKind::Evaluation, RunKind::Training],
            };
            (reference.name.to_owned(), kinds)
        }
    };
    let missing = || {
        RunError::failed(
            RunErrorKind::RunNotFound,
            format!("there is no run `{text}` at `{}`", request.store),
        )
        .hint("its controller makes it: `osmosis eval submit CFG --store …`")
    };
    let name = RunName::new(&text).map_err(|_| missing())?;
    let mut found = vec![];
    for kind in kinds {
        let run = RunKey {
            kind,
            name: name.clone(),
        };
        if catalogue.contains(&run).await? {
            found.push(run);
        }
    }
    match found.pop() {
        None => Err(missing().into()),
        Some(_) if !found.is_empty() => Err(RunError::failed(
            RunErrorKind::RunAmbiguous,
            format!("an evaluation and a training are named `{text}`"),
        )
        .hint(format!("write `--run eval/{text}` or `--run train/{text}`"))
        .into()),
        Some(run) => Ok(run),
    }
}

fn check_token(token: &JoinToken, reference: &RunReference<'_>) -> Result<(), RunError> {
    let kind_fits = reference.kind.is_none_or(|kind| kind == token.kind);
    if kind_fits && reference.name == token.run.as_str() {
        return Ok(());
    }
    let (kind, run) = (kind_word(token.kind), &token.run);
    Err(RunError::usage(
        RunErrorKind::TokenInvalid,
        format!("the token of `--join` is for `{kind}/{run}`, and `--run` names another"),
    )
    .hint("leave `--run` out: the token names the run"))
}

/// Refuses a run that is over.
pub(super) fn check_status(record: &RunRecord) -> Result<(), RunError> {
    let over = |what: &str| {
        let message = format!("run `{}` {what}", record.name);
        RunError::failed(RunErrorKind::RunOver, message)
    };
    let command = match record.kind {
        RunKind::Training => "train",
        RunKind::Evaluation | RunKind::Serving => "eval",
    };
    match record.status {
        RunStatus::Running => Ok(()),
        RunStatus::Finished => Err(over("is finished: there is nothing to do for nodes")),
        RunStatus::Interrupted => Err(over("was interrupted, and takes no nodes").hint(format!(
            "resume it first: `osmosis {command} resume {} --store …`",
            record.name
        ))),
    }
}

/// Refuses a run whose controller does all of it.
pub(super) fn check_takes_nodes(record: &RunRecord, pinned: &Pinned) -> Result<(), RunError> {
    let why = if pinned.regraded_from.is_some() {
        "grades the samples of another run, which its controller does alone"
    } else if pinned.trainer.as_deref() == Some("supervised") {
        "learns from conversations (`train sft`), and has no rollouts"
    } else if pinned.trainer.is_some() {
        "is trained from outside (`train serve`), and its controller runs all of its rollouts"
    } else {
        return Ok(());
    };
    let message = format!("run `{}` takes no nodes: it {why}", record.name);
    Err(RunError::failed(RunErrorKind::Usage, message))
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;

    use super::*;
    use crate::runs::RegradedFrom;

    #[test]
    fn a_regrade_and_a_training_from_outside_take_no_nodes() {
        let record = RunRecord {
            name: RunName::new("again").unwrap(),
            kind: RunKind::Evaluation,
            status: RunStatus::Running,
            created_at_ms: 0,
            finished_at_ms: None,
            config_toml: String::new(),
            pinned: JsonText::parse("{}").unwrap(),
        };
        assert!(check_takes_nodes(&record, &Pinned::default()).is_ok());
        let regraded = Pinned {
            regraded_from: Some(RegradedFrom::new(&record, &Pinned::default())),
            ..Pinned::default()
        };
        let error = check_takes_nodes(&record, &regraded).unwrap_err();
        assert!(
            error.message().contains("`again` takes no nodes"),
            "{error:?}"
        );
        let outside = Pinned {
            trainer: Some("outside".to_owned()),
            ..Pinned::default()
        };
        let error = check_takes_nodes(&record, &outside).unwrap_err();
        assert!(error.message().contains("train serve"), "{error:?}");
    }
}
