//! The embedded model does what a learner must do.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_policy::{EmbeddedModel, Sampler, SamplerOptions};
use osmosis_testkit::for_each_learner_behaviour;
use osmosis_testkit::learner_conformance::{self, LearnerUnderTest, Verdict};

fn under_test(folder: &Utf8Path) -> LearnerUnderTest {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let options = SamplerOptions {
        max_batch: 2,
        threads: 1,
        cache_bytes: 1 << 24,
    };
    let sampler = Arc::new(Sampler::start(&model, PolicyVersion(0), options).unwrap());
    LearnerUnderTest {
        vocabulary: u32::try_from(model.config.vocabulary).unwrap(),
        model: Arc::new(model),
        sink: sampler.clone(),
        engine: sampler,
        folder: folder.to_owned(),
    }
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() -> Verdict {
            let folder = tempfile::tempdir()?;
            let path = Utf8Path::from_path(folder.path()).unwrap();
            learner_conformance::$name(&under_test(path))
        }
    )*};
}
for_each_learner_behaviour!(each);
