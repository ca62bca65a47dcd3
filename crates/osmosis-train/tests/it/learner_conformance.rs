//! The stand-in that most tests here train does what a learner must do.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_testkit::for_each_learner_behaviour;
use osmosis_testkit::learner_conformance::{self, LearnerUnderTest, Verdict};
use osmosis_testkit::unigram::{UnigramModel, UnigramSampler};

fn under_test(folder: &Utf8Path) -> LearnerUnderTest {
    let model = UnigramModel::new(10);
    let sampler = Arc::new(UnigramSampler::new(&model, 32).unwrap());
    LearnerUnderTest {
        model: Arc::new(model),
        sink: sampler.clone(),
        engine: sampler,
        vocabulary: 10,
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
