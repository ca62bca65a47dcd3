//! What every learner, its files and its sampler must do. An implementation runs each behaviour as a test of its
//! own through [`for_each_learner_behaviour!`](crate::for_each_learner_behaviour).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use camino::Utf8PathBuf;
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, LearnerFiles, LossFunction, LossRow, PolicyGradient,
    Surrogate, TrainableModel, WeightSink, Weights,
};

/// What a behaviour returns; what it finds wrong, it asserts.
pub type Verdict = anyhow::Result<()>;

/// Only a test that fails waits this long.
const LONG: Duration = Duration::from_mins(1);
const LR: f64 = 0.02;
const CLIPPED: LossFunction = LossFunction::clipped(0.2, 0.2, 0.0);
const DECOUPLED: LossFunction = LossFunction::decoupled(0.2, 0.2, 0.1, 5.0);
const LOSSES: [LossFunction; 4] = [
    CLIPPED,
    DECOUPLED,
    LossFunction::PolicyGradient(PolicyGradient {
        surrogate: Surrogate::Sequence,
        ..PolicyGradient::CLIPPED
    }),
    LossFunction::PolicyGradient(PolicyGradient {
        surrogate: Surrogate::ConstantWeight,
        ..PolicyGradient::CLIPPED
    }),
];

/// An implementation under test. Its vocabulary has at least 8 tokens, its context room for 16.
#[derive(Debug)]
pub struct LearnerUnderTest {
    pub model: Arc<dyn TrainableModel>,
    /// Samples with the model's weights, as version 0. The same thing twice.
    pub sink: Arc<dyn WeightSink>,
    pub engine: Arc<dyn TokenEngine>,
    /// Below this id all tokens exist, and none from there on.
    pub vocabulary: u32,
    /// An empty folder.
    pub folder: Utf8PathBuf,
}

/// Hands the names of all behaviours to a macro: `for_each_learner_behaviour!(each)`.
#[macro_export]
macro_rules! for_each_learner_behaviour {
    ($each:ident) => {
        $each! {
            what_earned_more_becomes_likelier
            the_logprobs_before_an_update_are_shown_and_can_be_refused
            equal_updates_give_equal_bits
            a_saved_learner_goes_on_as_if_it_had_not_stopped
            files_that_cannot_be_read_change_nothing
            rows_that_make_no_sense_change_nothing
            model_files_come_back_as_they_were
            weights_that_are_not_finite_are_refused
            a_sampler_has_the_version_it_was_given_last
            the_learner_confirms_what_its_weights_sampled
            an_entropy_bonus_alone_makes_the_policy_less_certain
        }
    };
}

pub fn what_earned_more_becomes_likelier(test: &LearnerUnderTest) -> Verdict {
    let mut learner = test.model.learner(LR)?;
    for loss in LOSSES {
        let before = logprobs(&*learner)?;
        let report = updated(&mut *learner, loss)?;
        let after = logprobs(&*learner)?;
        assert!(after[0][2] > before[0][2], "{before:?}, {after:?}");
        assert!(after[1][2] < before[1][2], "{before:?}, {after:?}");
        assert_eq!(report.tokens, 2);
        assert!(
            report.gradient_norm > 0.0 && report.entropy > 0.0,
            "{report:?}"
        );
        assert!(report.mismatch_max < 1e-4, "{report:?}");
        let (_, decoupled) = loss.needs();
        assert_eq!(report.behaviour_weight.is_some(), decoupled, "{report:?}");
    }
    assert_eq!(learner.updates(), LOSSES.len() as u64);
    Ok(())
}

pub fn an_entropy_bonus_alone_makes_the_policy_less_certain(test: &LearnerUnderTest) -> Verdict {
    // The same history, then updates with and without the bonus: what an optimizer goes on with is the same in both.
    let entropy_after = |entropy_coef: f64| -> anyhow::Result<f64> {
        let mut learner = test.model.learner(LR)?;
        // Something to be certain of.
        for _ in 0..5 {
            updated(&mut *learner, CLIPPED)?;
        }
        let loss = LossFunction::PolicyGradient(PolicyGradient {
            entropy_coef,
            ..PolicyGradient::CLIPPED
        });
        let mut last = 0.0;
        for _ in 0..5 {
            let mut rows = rows(&*learner)?;
            for row in &mut rows {
                row.advantages.fill(0.0);
            }
            let report = learner.update(&rows, loss, &mut |_| true)?;
            last = report
                .context("an update that was accepted was not made")?
                .entropy;
        }
        Ok(last)
    };
    let (with, without) = (entropy_after(1.0)?, entropy_after(0.0)?);
    assert!(
        with > without,
        "the bonus did not raise the entropy: {with} with it, {without} without"
    );
    Ok(())
}

pub fn the_logprobs_before_an_update_are_shown_and_can_be_refused(
    test: &LearnerUnderTest,
) -> Verdict {
    let mut learner = test.model.learner(LR)?;
    let rows = rows(&*learner)?;
    let before = learner.logprobs(&rows)?;
    let mut shown = Vec::new();
    let refused = learner.update(&rows, CLIPPED, &mut |logprobs| {
        shown = logprobs.to_vec();
        false
    })?;
    assert_eq!(refused, None);
    assert_eq!(learner.updates(), 0);
    assert_eq!(bits(&learner.weights()?), bits(&test.model.weights()));
    for ((row, shown), before) in rows.iter().zip(&shown).zip(&before) {
        assert_eq!(shown.len(), row.ids.len());
        for (at, weight) in row.weights.iter().enumerate() {
            let expected = if *weight == 0.0 { 0.0 } else { before[at] };
            assert!((shown[at] - expected).abs() < 1e-5, "{shown:?}, {before:?}");
        }
        assert!(before[0] == 0.0, "nothing comes before the first token");
    }
    Ok(())
}

pub fn equal_updates_give_equal_bits(test: &LearnerUnderTest) -> Verdict {
    let mut weights = Vec::new();
    for _ in 0..2 {
        let mut learner = test.model.learner(LR)?;
        updated(&mut *learner, CLIPPED)?;
        updated(&mut *learner, DECOUPLED)?;
        weights.push(bits(&learner.weights()?));
    }
    assert!(weights[0] == weights[1], "other bits the second time");
    assert_ne!(weights[0], bits(&test.model.weights()));
    Ok(())
}

pub fn a_saved_learner_goes_on_as_if_it_had_not_stopped(test: &LearnerUnderTest) -> Verdict {
    let mut learner = test.model.learner(LR)?;
    updated(&mut *learner, CLIPPED)?;
    updated(&mut *learner, CLIPPED)?;
    let model = test.folder.join("model");
    let files = LearnerFiles {
        model: &model,
        optimizer: &model.join("trainer/optimizer"),
    };
    learner.save(files)?;
    // Not what is saved: a restore replaces all of it.
    let mut restored = test.model.learner(LR)?;
    updated(&mut *restored, DECOUPLED)?;
    restored.restore(files, learner.updates())?;
    assert_eq!(restored.updates(), 2);
    assert_eq!(bits(&restored.weights()?), bits(&learner.weights()?));
    // The optimizer has a memory, so that an update tells whether that is back too.
    updated(&mut *learner, CLIPPED)?;
    updated(&mut *restored, CLIPPED)?;
    assert!(
        bits(&restored.weights()?) == bits(&learner.weights()?),
        "the optimizer's state was lost"
    );
    Ok(())
}

pub fn files_that_cannot_be_read_change_nothing(test: &LearnerUnderTest) -> Verdict {
    let mut learner = test.model.learner(LR)?;
    updated(&mut *learner, CLIPPED)?;
    let before = bits(&learner.weights()?);
    let (model, nowhere) = (test.folder.join("model"), test.folder.join("nowhere"));
    let saved = LearnerFiles {
        model: &model,
        optimizer: &model.join("trainer/optimizer"),
    };
    test.model.learner(LR)?.save(saved)?;
    for files in [
        LearnerFiles {
            optimizer: &nowhere,
            ..saved
        },
        LearnerFiles {
            model: &nowhere,
            ..saved
        },
    ] {
        let refused = error(learner.restore(files, 0))?;
        assert_eq!(refused.kind, LearnerErrorKind::Unreadable, "{refused}");
        assert_eq!(learner.updates(), 1);
        assert!(bits(&learner.weights()?) == before, "{files:?}");
    }
    Ok(())
}

pub fn rows_that_make_no_sense_change_nothing(test: &LearnerUnderTest) -> Verdict {
    let mut learner = test.model.learner(LR)?;
    let good = rows(&*learner)?.remove(0);
    let with = |change: fn(&mut LossRow)| {
        let mut row = good.clone();
        change(&mut row);
        vec![row]
    };
    let mut unknown = good.clone();
    unknown.ids[1] = test.vocabulary;
    let bad = [
        (vec![], CLIPPED),
        (vec![unknown], CLIPPED),
        (with(|row| row.weights.fill(0.0)), CLIPPED),
        (with(|row| row.weights[0] = 1.0), CLIPPED),
        (with(|row| row.advantages.truncate(1)), CLIPPED),
        (with(|row| row.sampled_logprobs[2] = f32::NAN), CLIPPED),
        (with(|row| row.temperatures[1] = 0.0), CLIPPED),
        (with(|row| row.proximal_logprobs = None), DECOUPLED),
        (
            with(|row| row.reference_logprobs = None),
            LossFunction::clipped(0.2, 0.2, 0.1),
        ),
    ];
    for (rows, loss) in bad {
        let refused = error(learner.update(&rows, loss, &mut |_| true))?;
        assert_eq!(
            refused.kind,
            LearnerErrorKind::Invalid,
            "{refused}: {rows:?}"
        );
        assert_eq!(learner.updates(), 0);
        assert_eq!(bits(&learner.weights()?), bits(&test.model.weights()));
    }
    Ok(())
}

pub fn model_files_come_back_as_they_were(test: &LearnerUnderTest) -> Verdict {
    let (files, weights) = (test.model.files(), test.model.weights());
    let folder = test.folder.join("model");
    files.write(&folder, &weights)?;
    assert_eq!(bits(&files.read(&folder)?), bits(&weights));
    let missing = error(files.read(&test.folder.join("nowhere")))?;
    assert_eq!(missing.kind, LearnerErrorKind::Unreadable, "{missing}");
    Ok(())
}

pub fn weights_that_are_not_finite_are_refused(test: &LearnerUnderTest) -> Verdict {
    let mut weights = Weights::clone(&test.model.weights());
    for tensor in weights.tensors.values_mut() {
        tensor.values = vec![f32::NAN; tensor.values.len()].into();
    }
    let folder = test.folder.join("model");
    let files = test.model.files();
    files.write(&folder, &weights)?;
    let refused = error(files.read(&folder))?;
    assert_eq!(refused.kind, LearnerErrorKind::NotFinite, "{refused}");
    Ok(())
}

pub fn a_sampler_has_the_version_it_was_given_last(test: &LearnerUnderTest) -> Verdict {
    for version in [PolicyVersion(3), PolicyVersion(4)] {
        test.sink.load(&test.model.weights(), version)?;
        assert_eq!(test.engine.version(), version);
        let tokens = sampled(test)?;
        assert!(tokens.iter().all(|token| token.version == version));
    }
    error(test.sink.load(&Weights::default(), PolicyVersion(5)))?;
    assert_eq!(test.engine.version(), PolicyVersion(4));
    Ok(())
}

pub fn the_learner_confirms_what_its_weights_sampled(test: &LearnerUnderTest) -> Verdict {
    let mut learner = test.model.learner(LR)?;
    updated(&mut *learner, CLIPPED)?;
    test.sink.load(&learner.weights()?, PolicyVersion(1))?;
    let before = test.sink.sampled_tokens();
    let tokens = sampled(test)?;
    let count = tokens.len() as u64;
    assert!(count > 0 && test.sink.sampled_tokens() - before == count);
    let mut row = row(&PROMPT);
    for token in &tokens {
        row.ids.push(token.id);
        row.temperatures.push(TEMPERATURE);
    }
    let logprobs = learner.logprobs(&[row])?.remove(0);
    for (token, learned) in tokens.iter().zip(&logprobs[PROMPT.len()..]) {
        let apart = (token.logprob - learned).abs();
        assert!(apart < 1e-3, "{token:?}: the learner says {learned}");
    }
    Ok(())
}

const PROMPT: [u32; 3] = [1, 2, 3];
const TEMPERATURE: f32 = 0.7;

fn sampled(test: &LearnerUnderTest) -> anyhow::Result<Vec<SampledToken>> {
    struct Collected(mpsc::Sender<Result<SampledToken, Result<StopReason, GenerationError>>>);
    impl TokenSink for Collected {
        fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
            match self.0.send(Ok(token)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        }
        fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
            let _ = self.0.send(Err(end));
        }
    }
    let (sender, received) = mpsc::channel();
    let request = GenerationRequest {
        prompt: PROMPT.to_vec(),
        max_tokens: 6,
        temperature: TEMPERATURE,
        top_p: 1.0,
        top_k: 0,
        stop_ids: vec![],
        alternatives: 0,
        key: DrawKey([7; 32]),
        constraint: None,
    };
    test.engine.generate(request, Box::new(Collected(sender)));
    let mut tokens = Vec::new();
    loop {
        match received.recv_timeout(LONG).context("nothing was sampled")? {
            Ok(token) => tokens.push(token),
            Err(end) => {
                end?;
                return Ok(tokens);
            }
        }
    }
}

/// A row in which nothing counts yet.
fn row(ids: &[u32]) -> LossRow {
    LossRow {
        ids: ids.to_vec(),
        weights: vec![0.0; ids.len()],
        advantages: vec![0.0; ids.len()],
        sampled_logprobs: vec![0.0; ids.len()],
        proximal_logprobs: None,
        reference_logprobs: None,
        temperatures: vec![1.0; ids.len()],
        constrained: vec![],
    }
}

/// Two rows that end differently, the first of which was better. The learner itself sampled them.
fn rows(learner: &dyn Learner) -> Result<Vec<LossRow>, LearnerError> {
    let mut rows = vec![row(&[1, 2, 5]), row(&[1, 2, 6])];
    let logprobs = learner.logprobs(&rows)?;
    for ((row, logprobs), advantage) in rows.iter_mut().zip(logprobs).zip([1.0, -1.0]) {
        row.weights[2] = 0.5;
        row.advantages[2] = advantage;
        row.proximal_logprobs = Some(logprobs.clone());
        row.reference_logprobs = Some(logprobs.clone());
        row.sampled_logprobs = logprobs;
    }
    Ok(rows)
}

fn logprobs(learner: &dyn Learner) -> Result<Vec<Vec<f32>>, LearnerError> {
    learner.logprobs(&rows(learner)?)
}

fn updated(
    learner: &mut dyn Learner,
    loss: LossFunction,
) -> anyhow::Result<osmosis_core::learner::UpdateReport> {
    let rows = rows(learner)?;
    let report = learner.update(&rows, loss, &mut |_| true)?;
    report.context("an update that was accepted was not made")
}

fn bits(weights: &Weights) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let tensors = weights.tensors.iter();
    tensors
        .map(|(name, tensor)| {
            let bits = tensor.values.iter().map(|value| value.to_bits()).collect();
            (name.clone(), tensor.shape.clone(), bits)
        })
        .collect()
}

fn error<T: std::fmt::Debug>(result: Result<T, LearnerError>) -> anyhow::Result<LearnerError> {
    match result {
        Err(error) => Ok(error),
        Ok(done) => Err(anyhow!("this should have been refused: {done:?}")),
    }
}
