//! Rollouts that run at a rollout server: the other end of the protocol that this crate serves.
//!
//! `RemoteServer` is a server that has answered, `Callbacks` where it calls back, `RemoteRollouts` the
//! executor over both. `wire` holds the words of the protocol, `verdict` says what they mean, `client`
//! sends requests, `attempt` follows one rollout to its end.
//!
//! Servers tell of a rollout in one of two ways, which shows in their answer to `POST /rollout`: they call
//! back, or they hand out a lease to poll the result with. Both are spoken.

mod at_server;
mod attempt;
mod callbacks;
mod client;
mod reach;
mod verdict;
mod wire;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_core::execution::{GradeJob, GradeReport, RunJob, TaskReport, TaskResult, Terms};
use osmosis_core::{Attempt, Phase, RolloutId};
use osmosis_engine::Executor;
use osmosis_gateway::{Secret, companion_key};
use parking_lot::Mutex;
use reqwest::Url;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::at_server::{ChosenServer, Rendezvous};
use self::attempt::{Followed, RemoteAttempt};
pub use self::callbacks::Callbacks;
use self::client::{Answer, Client, Posted};
pub use self::reach::{Reach, ReachError, parse_url};
use self::verdict::{out_of_reach, refused};
use self::wire::RolloutBody;
use crate::ServerError;

/// The longest wait between two tries of a server that is down.
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// However long a full server asks us to stay away.
const LONGEST_STAY: Duration = Duration::from_mins(1);
/// Rollouts cancelled in one request.
const CANCEL_BATCH: usize = 500;

/// Which server, and how patient we are with it.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    pub server: Url,
    /// What it wants to see as `Authorization: Bearer KEY`.
    pub key: Option<Secret>,
    /// When a rollout is first asked after, should its callback get lost; grows to `longest_look`.
    pub first_look: Duration,
    pub longest_look: Duration,
    /// How long a server may be down until what it has is taken for lost.
    pub patience: Duration,
    /// How long the callback of a rollout that has ended may be on its way.
    pub callback_grace: Duration,
    /// What a server may take beyond a rollout's deadlines, to keep them and to tell of it.
    pub slack: Duration,
}

impl RemoteOptions {
    pub fn new(server: Url, key: Option<Secret>) -> Self {
        Self {
            server,
            key,
            first_look: Duration::from_secs(2),
            longest_look: Duration::from_secs(30),
            patience: Duration::from_mins(1),
            callback_grace: Duration::from_mins(1),
            slack: Duration::from_mins(1),
        }
    }
}

/// A rollout server that has answered.
#[derive(Debug)]
pub struct RemoteServer {
    client: Client,
    options: RemoteOptions,
    health: Value,
}

impl RemoteServer {
    /// Asks for the server's health, and whether it lets us in.
    pub async fn meet(options: RemoteOptions) -> Result<Self, ServerError> {
        let url = crate::request::shown(&options.server);
        let told = |message: String| ServerError::NoServer {
            url: url.clone(),
            message,
        };
        let client = Client::new(&options).map_err(told)?;
        let health = client.health().await.map_err(told)?;
        // Health needs no key everywhere; this does. Nobody has a rollout of that name.
        let probe = format!("probe-{:016x}", rand::random::<u64>());
        match client.status(&probe).await {
            Answer::Refused(detail) => return Err(told(detail)),
            Answer::Down(down) => return Err(told(down.detail)),
            Answer::RolloutNotice(_) | Answer::NotFound => {}
        }
        Ok(Self {
            client,
            options,
            health,
        })
    }

    /// What it said about itself.
    pub fn health(&self) -> &Value {
        &self.health
    }

    /// As many rollouts it runs at once, when it says so.
    pub fn max_concurrent(&self) -> Option<usize> {
        let limit = self.health.get("concurrency")?.get("max_concurrent")?;
        usize::try_from(limit.as_u64()?.max(1)).ok()
    }
}

/// Has rollouts run and graded by a rollout server.
#[derive(Debug)]
pub struct RemoteRollouts {
    client: Client,
    options: RemoteOptions,
    callbacks: Callbacks,
    /// Where the server reaches us, without a slash at the end.
    base: String,
    /// Makes our ids differ from everybody's, and from those of an earlier time.
    tag: String,
    /// Servers that say how many they run at once count the time in their queue against a rollout's
    /// deadline. So they get no more than that.
    seats: Option<Arc<Semaphore>>,
    /// Those that have run and are to be graded.
    ran: Mutex<HashMap<RolloutId, RemoteAttempt>>,
    /// The ids that the server holds for us.
    at_server: Mutex<HashSet<RolloutId>>,
    /// When anything last happened at the server.
    news: Mutex<Instant>,
}

impl RemoteRollouts {
    /// `base` is where the server reaches the gateway and the callbacks beside it: the gateway's address
    /// without `/v1`, or another one that leads there.
    pub fn new(server: RemoteServer, callbacks: Callbacks, base: &str) -> Self {
        let seats = server.max_concurrent().map(Semaphore::new).map(Arc::new);
        Self {
            seats,
            client: server.client,
            options: server.options,
            callbacks,
            base: base.trim_end_matches('/').to_owned(),
            tag: format!("e{:010x}", rand::random::<u64>() >> 24),
            ran: Mutex::default(),
            at_server: Mutex::default(),
            news: Mutex::new(Instant::now()),
        }
    }

    /// Has the server let go of what it still holds for us.
    pub async fn close(&self) {
        let held: Vec<RolloutId> = self.at_server.lock().drain().collect();
        for batch in held.chunks(CANCEL_BATCH) {
            let ids: Vec<&str> = batch.iter().map(RolloutId::as_str).collect();
            self.client.cancel(&ids).await;
        }
    }

    fn id_at_server(&self, rollout: &RolloutId, attempt: Attempt) -> RolloutId {
        RolloutId::new(format!("{}-{rollout}-{attempt}", self.tag))
            .unwrap_or_else(|_| rollout.clone())
    }

    /// A place at a server that counts them; `None` when there is no such limit.
    async fn seat(&self) -> Option<OwnedSemaphorePermit> {
        let seats = Arc::clone(self.seats.as_ref()?);
        // It is never closed.
        seats.acquire_owned().await.ok()
    }

    /// Hands a rollout to the server, however long that takes.
    async fn admit(
        &self,
        id: &RolloutId,
        job: &RunJob,
        terms: &Terms,
    ) -> Result<RemoteAttempt, TaskResult> {
        let seat = self.seat().await;
        let callback_key = companion_key(&job.api_key);
        let awaited = self.callbacks.expect(&callback_key);
        let body = serde_json::to_string(&RolloutBody {
            rollout_id: id.as_str(),
            initial_messages: &job.prompt,
            label: job.label.as_deref(),
            metadata: job.metadata.as_ref(),
            chat_completions_url: &format!("{}/v1", self.base),
            controller_api_key: &callback_key,
            llm_api_key: &job.api_key,
            completion_callback_url: &awaited.completion_url(&self.base),
            grader_callback_url: &awaited.grader_url(&self.base),
            agent_timeout_sec: terms.agent_limit.as_secs_f64(),
            grader_timeout_sec: terms.grade_limit.as_secs_f64(),
        })
        .map_err(|error| refused(error.to_string()))?;
        let mut wait = Duration::from_millis(250);
        loop {
            // It may be held there from the moment it is sent.
            self.at_server.lock().insert(id.clone());
            match self.client.post(&body).await {
                Posted::Accepted(admission) => {
                    self.news();
                    return Ok(RemoteAttempt::new(
                        id.clone(),
                        awaited,
                        admission,
                        seat,
                        &self.options,
                    ));
                }
                Posted::Full(stay) => tokio::time::sleep(stay.min(LONGEST_STAY)).await,
                Posted::Refused {
                    detail,
                    conflict: false,
                } => return Err(refused(detail)),
                // A try of ours got through although it seemed to fail. Who knows what became of it.
                Posted::Refused {
                    detail,
                    conflict: true,
                } => return Err(out_of_reach(detail)),
                Posted::Down(down) if down.since.elapsed() >= self.options.patience => {
                    return Err(out_of_reach(down.detail));
                }
                Posted::Down(down) => {
                    tokio::time::sleep(down.retry_after.unwrap_or(wait).min(LONGEST_RETRY)).await;
                    wait = (wait * 2).min(LONGEST_RETRY);
                }
            }
        }
    }

    /// Something happened at the server.
    fn news(&self) {
        *self.news.lock() = Instant::now();
    }

    /// Follows a phase to its end, unless we stop it or the server has fallen silent.
    async fn follow(
        &self,
        attempt: &mut RemoteAttempt,
        phase: Phase,
        terms: &Terms,
        cancel: &CancellationToken,
    ) -> Followed {
        let began = Instant::now();
        loop {
            let give_up_at = self.give_up_at(attempt, phase, began, terms);
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    self.client.cancel(&[attempt.id.as_str()]).await;
                    return Followed::plain(TaskResult::Cancelled);
                }
                step = attempt.step(self, phase) => {
                    if let Some(followed) = step {
                        self.news();
                        return followed;
                    }
                }
                () = tokio::time::sleep_until(give_up_at) => {
                    if self.give_up_at(attempt, phase, began, terms) <= Instant::now() {
                        self.client.cancel(&[attempt.id.as_str()]).await;
                        return Followed::plain(attempt.given_up());
                    }
                }
            }
        }
    }

    /// Deadlines are the server's to keep. When does it not? If it has a seat for the rollout, it runs it,
    /// and should be done in time. If not, the rollout may wait for others, which should be done in time.
    fn give_up_at(
        &self,
        attempt: &RemoteAttempt,
        phase: Phase,
        began: Instant,
        terms: &Terms,
    ) -> Instant {
        let slack = self.options.slack;
        match phase {
            Phase::Agent if attempt.has_seat() => attempt.started + terms.agent_limit + slack,
            Phase::Grade if attempt.has_seat() => began + terms.grade_limit + slack,
            Phase::Agent | Phase::Grade => {
                *self.news.lock() + terms.agent_limit + terms.grade_limit + slack
            }
        }
    }

    fn ended(&self, attempt: &RemoteAttempt) {
        self.callbacks.close(&attempt.awaited);
        self.at_server.lock().remove(&attempt.id);
    }
}

#[async_trait]
impl Executor for RemoteRollouts {
    fn alias(&self, rollout: &RolloutId, attempt: Attempt) -> Option<RolloutId> {
        Some(self.id_at_server(rollout, attempt))
    }

    async fn run(&self, job: RunJob, terms: Terms, cancel: &CancellationToken) -> TaskReport {
        let began = Instant::now();
        let id = self.id_at_server(&job.rollout_id, terms.attempt);
        let admitted = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                if self.at_server.lock().remove(&id) {
                    self.client.cancel(&[id.as_str()]).await;
                }
                Err(TaskResult::Cancelled)
            }
            admitted = self.admit(&id, &job, &terms) => admitted,
        };
        let mut attempt = match admitted {
            Ok(attempt) => attempt,
            Err(result) => {
                self.at_server.lock().remove(&id);
                return TaskReport {
                    result,
                    waited: began.elapsed(),
                    took: Duration::ZERO,
                };
            }
        };
        let followed = self
            .follow(&mut attempt, Phase::Agent, &terms, cancel)
            .await;
        let report = TaskReport {
            waited: attempt.started - began,
            took: attempt.started.elapsed(),
            result: followed.result,
        };
        if let TaskResult::Done { .. } = report.result {
            self.ran.lock().insert(job.rollout_id, attempt);
        } else {
            self.ended(&attempt);
        }
        report
    }

    async fn grade(&self, job: GradeJob, terms: Terms, cancel: &CancellationToken) -> GradeReport {
        let began = Instant::now();
        let attempt = self.ran.lock().remove(&job.rollout_id);
        let followed = match attempt {
            Some(mut attempt) => {
                let grading = self.follow(&mut attempt, Phase::Grade, &terms, cancel);
                let followed = grading.await;
                self.ended(&attempt);
                followed
            }
            // Asked for a second time, which nobody does of what is lost elsewhere.
            None => Followed::plain(out_of_reach("it is not at the rollout server")),
        };
        GradeReport {
            task: TaskReport {
                result: followed.result,
                waited: Duration::ZERO,
                took: began.elapsed(),
            },
            samples: followed.samples,
        }
    }
}

/// Reads what a rollout server may send, for `crate::fuzzing`.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzzing(body: &[u8]) {
    let _ = wire::Admission::read(body);
    assert!(wire::detail_of(body).chars().count() <= 300);
    if let Ok(told) = serde_json::from_slice::<wire::RolloutNotice>(body)
        && let Ok(samples) = told.samples()
    {
        assert_eq!(samples.is_empty(), !told.has_samples());
        assert!(samples.iter().all(|sample| !sample.messages.is_too_deep()));
    }
}
