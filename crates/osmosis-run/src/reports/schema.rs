//! The JSON schemas of the reports: `docs/schema/` is made of this, and of nothing else. A test compares,
//! and `OSMOSIS_UPDATE_DOCS=1` writes it anew.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use super::{
    ArchivalReport, Comparison, CopiedRunReport, DatasetPreview, DemoReport, DoctorReport,
    ErrorDetails, EvalDryRun, ExportReport, ExportedModelReport, Flip, MadeProject, ModelDryRuns,
    ModelRunsReport, MovedRun, NodeReport, NodesWelcome, ProgressLine, RegradeDryRun,
    RemovalReport, RolloutDetails, RolloutGrid, RolloutLine, RolloutPage, RolloutTokens,
    RolloutTranscript, RowGroup, RowRunReport, RunInfo, RunOverview, RunPage, RunReport,
    RunSizeReport, RunSummary, SalvagedRun, ServedBatches, ServedGateway, ServedRollouts,
    SharedReport, StepRollouts, StoppedRun, SupervisedDryRun, SupervisedTrainingReport, TaggedRun,
    TrainDryRun, TrainingInfo, TrainingReport, TrainingSteps, VerifiedRun, WrittenPages,
    WrittenReport,
};
use crate::rollout_query::ListedRollout;

/// A report's schema, and where it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaFile {
    /// Without the folder and `.json`.
    pub name: &'static str,
    pub schema: Value,
}

/// The schemas of all reports, in the order of their names.
pub fn schema_files() -> Vec<SchemaFile> {
    vec![
        file::<ArchivalReport>("archival-report"),
        file::<Comparison>("comparison"),
        file::<CopiedRunReport>("copied-run"),
        file::<DatasetPreview>("dataset-preview"),
        file::<DemoReport>("demo-report"),
        file::<DoctorReport>("doctor-report"),
        file::<ErrorDetails>("error-details"),
        file::<EvalDryRun>("eval-dry-run"),
        file::<ExportReport>("export-report"),
        file::<ExportedModelReport>("exported-model"),
        file::<Flip>("flip"),
        file::<ListedRollout>("listed-rollout"),
        file::<MadeProject>("made-project"),
        file::<ModelDryRuns>("model-dry-runs"),
        file::<ModelRunsReport>("model-runs-report"),
        file::<MovedRun>("moved-run"),
        file::<NodeReport>("node-report"),
        file::<NodesWelcome>("nodes-welcome"),
        file::<ProgressLine>("progress-line"),
        file::<RegradeDryRun>("regrade-dry-run"),
        file::<RemovalReport>("removal-report"),
        file::<RolloutDetails>("rollout-details"),
        file::<RolloutGrid>("rollout-grid"),
        file::<RolloutLine>("rollout-line"),
        file::<RolloutPage>("rollout-page"),
        file::<RolloutTokens>("rollout-tokens"),
        file::<RolloutTranscript>("rollout-transcript"),
        file::<RowGroup>("row-group"),
        file::<RowRunReport>("row-run"),
        file::<RunInfo>("run-info"),
        file::<RunOverview>("run-overview"),
        file::<RunPage>("run-page"),
        file::<RunReport>("run-report"),
        file::<RunSizeReport>("run-size"),
        file::<RunSummary>("run-summary"),
        file::<SalvagedRun>("salvaged-run"),
        file::<ServedBatches>("served-batches"),
        file::<ServedGateway>("served-gateway"),
        file::<ServedRollouts>("served-rollouts"),
        file::<SharedReport>("shared-report"),
        file::<StepRollouts>("step-rollouts"),
        file::<StoppedRun>("stopped-run"),
        file::<SupervisedDryRun>("supervised-dry-run"),
        file::<SupervisedTrainingReport>("supervised-training-report"),
        file::<TaggedRun>("tagged-run"),
        file::<TrainDryRun>("train-dry-run"),
        file::<TrainingInfo>("training-info"),
        file::<TrainingReport>("training-report"),
        file::<TrainingSteps>("training-steps"),
        file::<VerifiedRun>("verified-run"),
        file::<WrittenPages>("written-pages"),
        file::<WrittenReport>("written-report"),
    ]
}

fn file<T: JsonSchema>(name: &'static str) -> SchemaFile {
    // What is written: a field that may be left out is not required, one that may be null is.
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = SchemaGenerator::new(settings).into_root_schema_for::<T>();
    SchemaFile {
        name,
        schema: schema.to_value(),
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    #[test]
    fn the_schemas_in_the_docs_are_those_of_the_types() {
        let folder = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema"));
        let update = std::env::var_os("OSMOSIS_UPDATE_DOCS").is_some();
        let mut names = vec![];
        for SchemaFile { name, schema } in schema_files() {
            let path = folder.join(format!("{name}.json"));
            let text = format!("{schema:#}\n");
            if update {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let written = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                written == text,
                "docs/schema/{name}.json is not what the types say; run this test with OSMOSIS_UPDATE_DOCS=1"
            );
            names.push(format!("{name}.json"));
        }
        let mut there: Vec<String> = folder
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        there.sort();
        assert_eq!(there, names, "a schema in docs/schema belongs to no report");
    }
}
