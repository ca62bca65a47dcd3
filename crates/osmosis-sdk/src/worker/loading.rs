//! Answers `load`: reads the configs and says what this program holds.

use std::any::type_name;
use std::panic::Location;
use std::sync::Arc;

use osmosis_core::frame::{Found, FromWorker, Load, Manifest, Problem};

use crate::config::{name_of, read, short_name};
use crate::{AgentWorkflow, Grader};

/// The configs of a loaded rollout.
pub(super) struct Loaded<W: AgentWorkflow, G: Grader> {
    pub(super) load: Load,
    pub(super) answer: FromWorker,
    pub(super) workflow_config: Arc<W::Config>,
    pub(super) grader_config: Arc<G::Config>,
}

/// All problems at once.
pub(super) fn load<W: AgentWorkflow, G: Grader>(
    load: Load,
    workflow: &W,
    grader: &G,
    called_from: &Location<'_>,
) -> Result<Loaded<W, G>, Vec<Problem>> {
    let mut problems = Vec::new();
    if let Err(error) = std::env::set_current_dir(&load.project_path) {
        problems.push(Problem {
            code: "project_unreadable".to_owned(),
            message: format!("`{}`: {error}", load.project_path),
            hint: None,
            traceback: None,
        });
    }
    let workflow_config = read::<W::Config>(&load.workflow, "workflow");
    let grader_config = read::<G::Config>(&load.grader, "grader");
    let (workflow_config, grader_config) = match (workflow_config, grader_config) {
        (Ok(workflow), Ok(grader)) if problems.is_empty() => (workflow, grader),
        (workflow, grader) => {
            problems.extend(workflow.err());
            problems.extend(grader.err());
            return Err(problems);
        }
    };
    let found = |name: &str, config: Option<String>, max_concurrent: Option<u32>| Found {
        name: short_name(name).to_owned(),
        // Where `run_worker` is called with it: a compiled type does not say where it was written.
        file: called_from.file().to_owned(),
        line: called_from.line(),
        config,
        max_concurrent,
    };
    let manifest = Manifest {
        workflow: found(
            type_name::<W>(),
            name_of::<W::Config>(),
            workflow.max_concurrent(&workflow_config.config),
        ),
        grader: Some(found(
            type_name::<G>(),
            name_of::<G::Config>(),
            grader.max_concurrent(&grader_config.config),
        )),
        warnings: [workflow_config.remarks, grader_config.remarks].concat(),
        not_forkable: Some("a program with threads can't be forked; it starts anew".to_owned()),
        self_graded: false,
        serve_warnings: Vec::new(),
    };
    Ok(Loaded {
        load,
        answer: FromWorker::Loaded { manifest },
        workflow_config: Arc::new(workflow_config.config),
        grader_config: Arc::new(grader_config.config),
    })
}
