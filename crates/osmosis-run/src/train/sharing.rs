//! A training that several machines run rollouts for. The learner is here; the nodes ask its sampler.

use std::sync::Arc;

use bytes::Bytes;
use osmosis_engine::Claims;
use osmosis_gateway::TokenEndpoint;
use osmosis_policy::{EmbeddedModel, Sampler};
use osmosis_store::{RunKey, RunKind};
use osmosis_train::{NodeGate, TrainEvent};

use super::plan::{Plan, PlannedModel};
use super::training::Training;
use crate::life::{OpenRun, Surroundings};
use crate::node::control::invite;
use crate::node::offered_models::OfferedModels;
use crate::node::package::HELD_OUT_ROWS;
use crate::node::packing::pack;
use crate::policy::EmbeddedPolicy;
use crate::{RunError, RunErrorKind};

/// Nodes sample while the trainer lets them.
#[derive(Debug)]
struct EndpointGate(Arc<TokenEndpoint>);

impl NodeGate for EndpointGate {
    fn set_open(&self, open: bool) {
        self.0.set_open(open);
    }

    fn interrupt(&self) {
        self.0.interrupt();
    }
}

impl<M: PlannedModel + Sync> Training<M> {
    /// How much of a step's rollouts this process takes. A step is short: who comes first would take all of it.
    pub(super) fn claims(&self) -> Claims {
        if self.nodes.nodes_only {
            Claims::Nothing
        } else {
            Claims::Share
        }
    }
}

impl Training {
    /// Refuses a store that invites other machines, where these could not reach what samples.
    pub(super) fn refuse_nodes(run: &OpenRun) -> Result<(), RunError> {
        if run.store.shared().is_none() {
            return Ok(());
        }
        Err(RunError::failed(
            RunErrorKind::Usage,
            "`[trainer] kind = \"torch\"` takes no nodes, and a run in PostgreSQL invites them"
                .to_owned(),
        )
        .hint("leave `--store` out: the run is in a folder then"))
    }

    /// Lets other machines run rollouts, where the run's store does. They wait until the trainer opens the gate that
    /// is returned.
    pub(super) async fn invite_nodes(
        &self,
        model: &EmbeddedModel,
        sampler: &Arc<Sampler>,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<Option<Arc<dyn NodeGate>>, RunError> {
        if run.store.shared().is_none() {
            return Ok(None);
        }
        let plan = &self.plan;
        let judge = plan.config.judge_model.as_ref();
        let mut package = pack(&plan.code, &plan.workspace, judge, plan.seed())?;
        package.attach(HELD_OUT_ROWS, held_out_rows(plan)?);
        let policy = EmbeddedPolicy {
            sampler: Arc::clone(sampler),
            chat: Arc::clone(&model.chat),
        };
        let models = OfferedModels::of(Some(&policy), plan.judge.as_ref()).closed_at_first();
        models.attach(&mut package)?;
        let key = RunKey {
            kind: RunKind::Training,
            name: self.name.clone(),
        };
        let (store, notices) = (&*run.store, around.notices);
        let token = invite(store, &self.folder, &key, package, notices).await?;
        let opening = models.open_to_nodes(store, token.as_ref(), &self.nodes, around.parts);
        let endpoint = opening.await?;
        self.nodes
            .start_nodes(&key, &self.folder, token.as_ref(), &self.throughput)
            .await?;
        Ok(endpoint.map(|endpoint| Arc::new(EndpointGate(endpoint)) as Arc<dyn NodeGate>))
    }
}

fn held_out_rows<M: PlannedModel>(plan: &Plan<M>) -> Result<Bytes, RunError> {
    let rows: Vec<u64> = plan.held_out_rows().collect();
    serde_json::to_vec(&rows)
        .map(Bytes::from)
        .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))
}
