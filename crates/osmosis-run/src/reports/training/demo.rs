//! What the demo came to: a training's report with numbers of its own.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::TrainingReport;

/// The `resource` of `demo --json`: that of `train submit`, whose `seconds` are `phase_seconds` here, with the seconds of the
/// whole demo and its seed.
#[derive(Debug, Clone, PartialEq)]
pub struct DemoReport {
    /// `null` when nothing was trained.
    pub seconds: Option<f64>,
    pub seed: u64,
    pub training: TrainingReport,
}

/// The name of the training's `seconds` here.
const PHASES: &str = "phase_seconds";

impl DemoReport {
    pub fn of(training: TrainingReport, seed: u64) -> Self {
        Self {
            seconds: training.duration.map(|duration| duration.as_secs_f64()),
            seed,
            training,
        }
    }
}

impl Serialize for DemoReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut own = Map::new();
        own.insert("seconds".to_owned(), self.seconds.into());
        own.insert("seed".to_owned(), self.seed.into());
        let rest = serde_json::to_value(&self.training).map_err(S::Error::custom)?;
        own.extend(renamed(rest));
        own.serialize(serializer)
    }
}

/// The fields of a training's report, by their names here.
fn renamed(fields: Value) -> Map<String, Value> {
    let Value::Object(fields) = fields else {
        return Map::new();
    };
    let name = |name: String| match name.as_str() {
        "seconds" => PHASES.to_owned(),
        _ => name,
    };
    let fields = fields.into_iter();
    fields.map(|(key, value)| (name(key), value)).collect()
}

impl JsonSchema for DemoReport {
    fn schema_name() -> Cow<'static, str> {
        "DemoReport".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = TrainingReport::json_schema(generator);
        let about = "The `resource` of `demo --json`: that of `train submit` with numbers of the demo's own.";
        schema.insert("description".to_owned(), about.into());
        if let Some(properties) = schema.get_mut("properties") {
            let mut own = renamed(properties.take());
            let seconds = generator.subschema_for::<Option<f64>>();
            own.insert("seconds".to_owned(), seconds.to_value());
            let seed = generator.subschema_for::<u64>();
            own.insert("seed".to_owned(), seed.to_value());
            *properties = own.into();
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.extend([PHASES.into(), "seed".into()]);
        }
        schema
    }
}
