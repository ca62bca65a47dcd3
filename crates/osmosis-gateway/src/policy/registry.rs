//! What answers: the run's policy, and others by name. Each can be exchanged and held while calls come.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::{PolicyVersion, RolloutId};
use osmosis_dialect::model_in;
use parking_lot::RwLock;
use serde::Serialize;
use tokio::sync::watch;

use crate::error::GatewayError;
use crate::policy::upstream::{EndpointLoad, EndpointOptions};
use crate::policy::{Fault, FaultKind, Policy, PolicyChange, PolicyDescription};

/// How calls are held while a policy is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// Longer than this no call is held.
    pub wait: Duration,
    /// More than this are refused.
    pub calls: usize,
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self {
            wait: Duration::from_mins(10),
            calls: 16_384,
        }
    }
}

/// A policy as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyStatus {
    pub model: String,
    pub version: PolicyVersion,
    pub paused: bool,
    /// Calls that were let in and are not recorded yet.
    pub in_flight: usize,
    /// Calls that wait for the policy to be resumed.
    pub held: usize,
    /// Calls that wait for an endpoint to have room.
    pub queued: usize,
    /// Empty for a policy in this process.
    pub endpoints: Vec<EndpointLoad>,
}

/// A change as it is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyUpdate {
    /// `None` stays with those that are.
    pub endpoints: Option<Vec<EndpointOptions>>,
    pub model: Option<String>,
    /// `None` is the next one.
    pub version: Option<PolicyVersion>,
}

pub(crate) struct Registry {
    main: Arc<Served>,
    /// What graders ask, through sessions of their own.
    judge: RwLock<Option<Arc<Served>>>,
    named: RwLock<BTreeMap<String, Arc<Served>>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("main", &self.main)
            .finish_non_exhaustive()
    }
}

impl Registry {
    pub(crate) fn new(policy: Arc<dyn Policy>) -> Self {
        Self {
            main: Served::new(policy, true),
            judge: RwLock::default(),
            named: RwLock::default(),
        }
    }

    /// Calls for `name` go to this policy from now on.
    pub(crate) fn register(&self, name: &str, policy: Arc<dyn Policy>) -> Result<(), GatewayError> {
        let wrong = |message| GatewayError::PolicyName {
            name: name.to_owned(),
            message,
        };
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return Err(wrong("is not one line of 1 to 200 bytes"));
        }
        if MEANS_THE_RUNS.contains(&name) {
            return Err(wrong("always means the run's own policy"));
        }
        let mut named = self.named.write();
        match named.get(name) {
            Some(served) => *served.policy.write() = policy,
            None => {
                named.insert(name.to_owned(), Served::new(policy, false));
            }
        }
        Ok(())
    }

    /// The policy of this name; `None` is the run's own.
    pub(crate) fn get(&self, name: Option<&str>) -> Result<Arc<Served>, GatewayError> {
        let Some(name) = name else {
            return Ok(Arc::clone(&self.main));
        };
        let named = self.named.read();
        let served = named.get(name).map(Arc::clone);
        served.ok_or_else(|| GatewayError::UnknownPolicy {
            name: name.to_owned(),
        })
    }

    /// Who answers this request: any name that is not registered means the run's policy.
    pub(crate) fn for_request(&self, body: &[u8]) -> Arc<Served> {
        let named = self.named.read();
        if named.is_empty() {
            return Arc::clone(&self.main);
        }
        let model = model_in(body).unwrap_or_default();
        let served = named
            .get(&*model)
            .or_else(|| named.get(model.strip_prefix("openai/")?));
        Arc::clone(served.unwrap_or(&self.main))
    }

    pub(crate) fn set_judge(&self, policy: Arc<dyn Policy>) {
        *self.judge.write() = Some(Served::new(policy, false));
    }

    pub(crate) fn judge(&self) -> Option<Arc<Served>> {
        self.judge.read().clone()
    }

    pub(crate) fn run_policy(&self) -> Arc<Served> {
        Arc::clone(&self.main)
    }

    pub(crate) fn named(&self) -> Vec<(String, Arc<Served>)> {
        let named = self.named.read();
        named
            .iter()
            .map(|(name, served)| (name.clone(), Arc::clone(served)))
            .collect()
    }
}

const MEANS_THE_RUNS: [&str; 2] = ["osmosis-rollout", "openai/osmosis-rollout"];

/// A policy that is asked for by name, and whether it is asked now.
pub(crate) struct Served {
    policy: RwLock<Arc<dyn Policy>>,
    /// `[sampling]` is for the policy under study, not for judges and tools beside it.
    pub(crate) is_the_runs: bool,
    gate: watch::Sender<Gate>,
    /// As it was last announced.
    version: watch::Sender<PolicyVersion>,
    /// Weights are on their way in: nothing else changes meanwhile.
    loading: AtomicBool,
}

#[derive(Debug, Default)]
struct Gate {
    paused: bool,
    in_flight: usize,
    held: usize,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Served").field(&*self.policy.read()).finish()
    }
}

impl Served {
    fn new(policy: Arc<dyn Policy>, is_the_runs: bool) -> Arc<Self> {
        let version = policy.describe().version;
        Arc::new(Self {
            policy: RwLock::new(policy),
            is_the_runs,
            gate: watch::Sender::default(),
            version: watch::Sender::new(version),
            loading: AtomicBool::new(false),
        })
    }

    pub(crate) fn policy(&self) -> Arc<dyn Policy> {
        Arc::clone(&self.policy.read())
    }

    pub(crate) fn describe_for(&self, rollout: &RolloutId) -> PolicyDescription {
        self.policy.read().describe_for(rollout)
    }

    pub(crate) fn status(&self) -> PolicyStatus {
        let policy = self.policy();
        let described = policy.describe();
        let load = policy.load();
        let gate = self.gate.borrow();
        PolicyStatus {
            model: described.model,
            version: described.version,
            paused: gate.paused,
            in_flight: gate.in_flight,
            held: gate.held,
            queued: load.as_ref().map_or(0, |load| load.queued),
            endpoints: load.map(|load| load.endpoints).unwrap_or_default(),
        }
    }

    /// Lets a call in, at once or when the policy is resumed. What it is given is what answers it, whatever
    /// is served later.
    pub(crate) async fn enter(self: &Arc<Self>, limits: HoldLimits) -> Result<Pass, Fault> {
        if let Some(pass) = self.try_enter() {
            return Ok(pass);
        }
        let held = Held::new(self, limits)?;
        let mut gate = self.gate.subscribe();
        let resumed = async {
            loop {
                // The sender is alive: it is ours.
                let _ = gate.wait_for(|gate| !gate.paused).await;
                if let Some(pass) = self.try_enter() {
                    return pass;
                }
            }
        };
        let entered = tokio::time::timeout(limits.wait, resumed).await;
        drop(held);
        entered.map_err(|_| Fault {
            kind: FaultKind::Paused,
            status: 503,
            message: format!(
                "the policy was paused and not resumed within {:?}",
                limits.wait
            ),
        })
    }

    fn try_enter(self: &Arc<Self>) -> Option<Pass> {
        let mut pass = None;
        self.gate.send_if_modified(|gate| {
            if !gate.paused {
                gate.in_flight += 1;
                pass = Some(Pass {
                    policy: self.policy(),
                    served: Arc::clone(self),
                });
            }
            false
        });
        pass
    }

    /// From now on calls are held.
    pub(crate) fn pause(&self) {
        self.gate.send_if_modified(|gate| {
            gate.paused = true;
            false
        });
    }

    /// Lets those that are held go on.
    pub(crate) fn resume(&self) {
        self.gate.send_modify(|gate| gate.paused = false);
    }

    /// Returns when no call is under way; `false` when it was resumed meanwhile.
    pub(crate) async fn drained(&self) -> bool {
        let mut gate = self.gate.subscribe();
        // The sender is alive: it is ours.
        let drained = gate
            .wait_for(|gate| gate.in_flight == 0 || !gate.paused)
            .await;
        drained.is_ok_and(|gate| gate.in_flight == 0)
    }

    /// Exchanges what answers, all at once, and says which version that is. Calls under way finish with
    /// what they began with.
    pub(crate) fn update(&self, update: PolicyUpdate) -> Result<PolicyVersion, GatewayError> {
        let _only = self.changing()?;
        let version = self.exchange(update)?;
        self.version.send_replace(version);
        Ok(version)
    }

    fn exchange(&self, update: PolicyUpdate) -> Result<PolicyVersion, GatewayError> {
        let mut policy = self.policy.write();
        let described = policy.describe();
        let version = next_version(update.version, &described)?;
        let unchangeable = GatewayError::Unchangeable {
            endpoint: described.endpoint,
        };
        if update.endpoints.is_none() && update.model.is_none() {
            let updates = policy.capabilities().updates.ok_or(unchangeable)?;
            updates.set_version(version);
            return Ok(version);
        }
        let change = PolicyChange {
            endpoints: update.endpoints,
            model: update.model,
            version,
        };
        let updates = policy.capabilities().updates.ok_or(unchangeable)?;
        let changed = updates.changed(&change)?;
        *policy = changed;
        Ok(version)
    }

    /// Answers with other weights from the next token on, and says which version they are.
    pub(crate) async fn load_weights(
        &self,
        folder: &Utf8Path,
        version: Option<PolicyVersion>,
    ) -> Result<PolicyVersion, GatewayError> {
        let _only = self.changing()?;
        let policy = self.policy();
        let described = policy.describe();
        let version = next_version(version, &described)?;
        let weights = policy.capabilities().weights;
        let weights = weights.ok_or(GatewayError::WeightsElsewhere {
            endpoint: described.endpoint,
        })?;
        weights.load(folder, version).await?;
        self.version.send_replace(version);
        Ok(version)
    }

    pub(crate) fn versions(&self) -> watch::Receiver<PolicyVersion> {
        self.version.subscribe()
    }

    fn changing(&self) -> Result<Changing<'_>, GatewayError> {
        if self.loading.swap(true, Ordering::AcqRel) {
            return Err(GatewayError::Loading);
        }
        Ok(Changing(self))
    }

    pub(crate) fn replace(&self, policy: Arc<dyn Policy>) {
        let version = policy.describe().version;
        *self.policy.write() = policy;
        self.version.send_replace(version);
    }
}

/// The version that is asked for, or the one after that which answers. It never goes back.
fn next_version(
    asked: Option<PolicyVersion>,
    described: &PolicyDescription,
) -> Result<PolicyVersion, GatewayError> {
    let current = described.version;
    let version = asked.unwrap_or(PolicyVersion(current.0.saturating_add(1)));
    if version < current {
        return Err(GatewayError::VersionGoesBack {
            asked: version.0,
            current: current.0,
        });
    }
    Ok(version)
}

/// One change at a time; over when this is dropped.
struct Changing<'a>(&'a Served);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.loading.store(false, Ordering::Release);
    }
}

/// A call that was let in; it counts as under way until this is dropped.
pub(crate) struct Pass {
    pub(crate) policy: Arc<dyn Policy>,
    served: Arc<Served>,
}

impl Pass {
    /// What answers the calls of this rollout.
    pub(crate) fn policy_for(&self, rollout: &RolloutId) -> Arc<dyn Policy> {
        let of_rollout = self.policy.for_rollout(rollout);
        of_rollout.unwrap_or_else(|| Arc::clone(&self.policy))
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.served.gate.send_if_modified(|gate| {
            gate.in_flight = gate.in_flight.saturating_sub(1);
            gate.in_flight == 0 && gate.paused
        });
    }
}

/// A call that waits for the policy to be resumed.
struct Held<'a>(&'a Served);

impl<'a> Held<'a> {
    fn new(served: &'a Served, limits: HoldLimits) -> Result<Self, Fault> {
        let mut full = false;
        served.gate.send_if_modified(|gate| {
            full = gate.held >= limits.calls;
            gate.held += usize::from(!full);
            false
        });
        if full {
            return Err(Fault {
                kind: FaultKind::QueueFull,
                status: 429,
                message: format!(
                    "the policy is paused, and {} calls are held already",
                    limits.calls
                ),
            });
        }
        Ok(Self(served))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.gate.send_if_modified(|gate| {
            gate.held = gate.held.saturating_sub(1);
            false
        });
    }
}
