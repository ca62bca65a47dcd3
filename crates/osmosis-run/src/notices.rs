//! What a run has to say beside its result. A front end decides where that goes: this crate prints nothing.

use std::fmt;

use osmosis_worker::environment::EnvironmentEvent;

use crate::node::control::NodeInvitation;

/// One thing that the person who started a run may want to know.
#[derive(Debug, Clone)]
pub enum Notice {
    /// What was found or is being done.
    Note(String),
    /// Something is probably not as it was meant; the run goes on.
    Warning(String),
    /// What is being done now, and may take a while: `Importing rollouts/hello/main.py`.
    Step(String),
    /// What was being done is done, or given up.
    StepsDone,
    /// A step in making the environment of a project.
    Environment(EnvironmentEvent),
    /// The environment of a project is made, or can't be.
    EnvironmentDone,
    /// More machines can work on the run from now on.
    NodesWelcome(Box<NodeInvitation>),
}

/// Takes notices as they come. Called from tasks of the run, so it must not block for long.
pub trait Notices: fmt::Debug + Send + Sync {
    fn notice(&self, notice: Notice);
}

impl dyn Notices + '_ {
    pub fn note(&self, text: impl fmt::Display) {
        self.notice(Notice::Note(text.to_string()));
    }

    /// Says what is being done now, until the next step or [`Notice::StepsDone`].
    pub fn step(&self, text: impl fmt::Display) {
        self.notice(Notice::Step(text.to_string()));
    }

    pub fn warn(&self, text: impl fmt::Display) {
        self.notice(Notice::Warning(text.to_string()));
    }
}

/// Takes notices and forgets them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoNotices;

impl Notices for NoNotices {
    fn notice(&self, _notice: Notice) {}
}
