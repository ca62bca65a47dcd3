//! One attempt at a rollout, from its acceptance at the server to its end.

use std::time::Duration;

use osmosis_core::execution::TaskResult;
use osmosis_core::frame::TurnRewards;
use osmosis_core::{Phase, RolloutId, Sample};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::callbacks::{Awaited, Heard};
use super::client::{Answer, Down};
use super::verdict::{
    agent_result, grade_result, is_of_the_grader, out_of_reach, refused, unreadable,
};
use super::wire::{Admission, RolloutNotice, Word};
use super::{RemoteOptions, RemoteRollouts};

/// How often a server must say that it does not know a rollout. The first time it may just not have
/// begun.
const UNKNOWN_TIMES: u32 = 2;
/// The wait before a server that did not answer is asked again.
const DOWN_WAIT: Duration = Duration::from_secs(1);
/// No server is asked for a result more often than this.
const LEAST_POLL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct RemoteAttempt {
    /// What it is called at the server.
    pub(super) id: RolloutId,
    pub(super) awaited: Awaited,
    admission: Admission,
    /// When it began to run, as far as is known.
    pub(super) started: Instant,
    look_wait: Duration,
    /// The last word about it.
    word: Word,
    /// Whether the server can be asked where a rollout stands.
    has_status: bool,
    /// It was down since we last got an answer.
    was_down: bool,
    unknown: u32,
    /// When it was first seen to have ended.
    ended_at: Option<Instant>,
    /// The end of the grader, when it was told together with the workflow's.
    end: Option<Box<RolloutNotice>>,
    /// One of as many as the server runs at once.
    seat: Option<OwnedSemaphorePermit>,
}

/// How a phase ended.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) result: TaskResult,
    /// What is to be recorded when there is no grade.
    pub(super) samples: Vec<Sample>,
}

impl Followed {
    pub(super) fn plain(result: TaskResult) -> Self {
        Self {
            result,
            samples: vec![],
        }
    }

    fn graded(told: &RolloutNotice) -> Self {
        let (result, samples) = grade_result(told);
        Self { result, samples }
    }

    /// The workflow is done, and its grade follows.
    fn ran() -> Self {
        Self::plain(TaskResult::Done {
            samples: vec![],
            metrics: None,
            interactions: vec![],
            turn_rewards: TurnRewards::new(),
        })
    }
}

impl RemoteAttempt {
    pub(super) fn new(
        id: RolloutId,
        awaited: Awaited,
        admission: Admission,
        seat: Option<OwnedSemaphorePermit>,
        options: &RemoteOptions,
    ) -> Self {
        Self {
            id,
            awaited,
            admission,
            started: Instant::now(),
            look_wait: options.first_look,
            word: Word::Queued,
            has_status: true,
            was_down: false,
            unknown: 0,
            ended_at: None,
            end: None,
            seat,
        }
    }

    pub(super) fn has_seat(&self) -> bool {
        self.seat.is_some()
    }

    /// The result when the server has let all deadlines pass.
    pub(super) fn given_up(&self) -> TaskResult {
        match self.word {
            Word::Running | Word::Grading => TaskResult::TimedOut,
            Word::Queued if self.has_seat() => TaskResult::TimedOut,
            Word::Queued | Word::Success | Word::Failure | Word::Cancelled | Word::Unknown => {
                out_of_reach("the rollout server has fallen silent")
            }
        }
    }

    /// Waits for the next thing that happens; `Some` when it ends the phase. Can be dropped at any time.
    pub(super) async fn step(&mut self, server: &RemoteRollouts, phase: Phase) -> Option<Followed> {
        if let (Phase::Grade, Some(end)) = (phase, &self.end) {
            return Some(Followed::graded(end));
        }
        match self.admission.clone() {
            Admission::Polling { lease, wait_sec } => {
                let wait = Duration::from_secs_f64(wait_sec.min(600.0));
                self.poll(server, phase, &lease, wait).await
            }
            Admission::Callbacks => {
                let mut heard = self.awaited.heard.clone();
                let called = async move {
                    let called = match heard.wait_for(|all| ends(all, phase).is_some()).await {
                        Ok(heard) => ends(&heard, phase),
                        // The address is closed only when nobody follows.
                        Err(_) => None,
                    };
                    match called {
                        Some(followed) => followed,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    followed = called => Some(followed),
                    followed = self.look(server, phase) => followed,
                }
            }
        }
    }

    /// Asks where it stands, after a while: a callback can get lost, and a server too.
    async fn look(&mut self, server: &RemoteRollouts, phase: Phase) -> Option<Followed> {
        tokio::time::sleep(self.look_wait).await;
        let options = &server.options;
        self.look_wait = self.look_wait.mul_f64(1.5).min(options.longest_look);
        let answer = if self.has_status {
            server.client.status(self.id.as_str()).await
        } else {
            server.client.is_there().await
        };
        match answer {
            Answer::Down(down) => return self.is_down(down, options),
            Answer::Refused(detail) => return Some(Followed::plain(refused(detail))),
            Answer::NotFound if !self.has_status && self.was_down => {
                let detail = "the rollout server was away, and can't say what became of it";
                return Some(Followed::plain(out_of_reach(detail)));
            }
            Answer::NotFound => self.has_status = false,
            Answer::RolloutNotice(told) => return self.standing(&told, server, phase),
        }
        None
    }

    /// What follows from where it stands.
    fn standing(
        &mut self,
        told: &RolloutNotice,
        server: &RemoteRollouts,
        phase: Phase,
    ) -> Option<Followed> {
        self.heed(told.status, server);
        match told.status {
            Word::Queued | Word::Running => None,
            Word::Grading => (phase == Phase::Agent).then(Followed::ran),
            Word::Unknown => {
                self.unknown += 1;
                self.look_wait = server.options.first_look;
                (self.unknown >= UNKNOWN_TIMES).then(|| Followed::plain(forgotten()))
            }
            Word::Cancelled => Some(Followed::plain(agent_result(told))),
            Word::Success | Word::Failure => {
                self.look_wait = server.options.first_look;
                let ended_at = *self.ended_at.get_or_insert_with(Instant::now);
                (ended_at.elapsed() >= server.options.callback_grace).then(|| {
                    Followed::plain(out_of_reach(format!(
                        "it has ended, but the rollout server's callback never came; can it reach {}?",
                        server.base
                    )))
                })
            }
        }
    }

    /// Waits at the server until something happens.
    async fn poll(
        &mut self,
        server: &RemoteRollouts,
        phase: Phase,
        lease: &str,
        wait: Duration,
    ) -> Option<Followed> {
        let asked = Instant::now();
        match server.client.result(self.id.as_str(), lease, wait).await {
            Answer::RolloutNotice(told) => {
                let grading_seen = self.word == Word::Grading;
                let before = self.word;
                self.heed(told.status, server);
                match (told.status, phase) {
                    (Word::Grading, Phase::Agent) => Some(Followed::ran()),
                    (Word::Queued | Word::Running | Word::Grading, _) => {
                        if before == told.status {
                            tokio::time::sleep_until(asked + LEAST_POLL).await;
                        }
                        None
                    }
                    (Word::Unknown, _) => Some(Followed::plain(forgotten())),
                    (Word::Success | Word::Failure | Word::Cancelled, Phase::Grade) => {
                        Some(Followed::graded(&told))
                    }
                    (Word::Success | Word::Failure | Word::Cancelled, Phase::Agent) => {
                        if is_of_the_grader(&told, grading_seen) {
                            self.end = Some(told);
                            Some(Followed::ran())
                        } else {
                            Some(Followed::plain(agent_result(&told)))
                        }
                    }
                }
            }
            Answer::NotFound => Some(Followed::plain(forgotten())),
            Answer::Refused(detail) => Some(Followed::plain(out_of_reach(detail))),
            Answer::Down(down) => {
                let lost = self.is_down(down, &server.options);
                if lost.is_none() {
                    tokio::time::sleep(DOWN_WAIT).await;
                }
                lost
            }
        }
    }

    fn heed(&mut self, word: Word, server: &RemoteRollouts) {
        if self.word != word {
            server.news();
        }
        if word == Word::Queued {
            self.started = Instant::now();
        }
        if word != Word::Unknown {
            self.unknown = 0;
        }
        self.word = word;
    }

    fn is_down(&mut self, down: Down, options: &RemoteOptions) -> Option<Followed> {
        self.was_down = true;
        self.look_wait = DOWN_WAIT.min(options.longest_look);
        (down.since.elapsed() >= options.patience)
            .then(|| Followed::plain(out_of_reach(down.detail)))
    }
}

fn forgotten() -> TaskResult {
    out_of_reach("the rollout server does not know it any more: it was started anew, or gave it up")
}

/// How a phase ended by what was called; `None` when it has not.
fn ends(heard: &Heard, phase: Phase) -> Option<Followed> {
    match (phase, &heard.completion, &heard.grader) {
        (Phase::Agent, Some(Ok(told)), _) => Some(Followed::plain(agent_result(told))),
        (Phase::Agent, Some(Err(message)), _) => Some(Followed::plain(refused(format!(
            "its completion callback can't be read: {message}"
        )))),
        // The first callback got lost; the second one has it all.
        (Phase::Agent, None, Some(Ok(told))) => Some(if is_of_the_grader(told, false) {
            Followed::ran()
        } else {
            Followed::plain(agent_result(told))
        }),
        (Phase::Agent, None, Some(Err(_))) => Some(Followed::ran()),
        (Phase::Grade, _, Some(Ok(told))) => Some(Followed::graded(told)),
        (Phase::Grade, _, Some(Err(message))) => Some(Followed::plain(unreadable(message))),
        (Phase::Agent, None, None) | (Phase::Grade, _, None) => None,
    }
}
