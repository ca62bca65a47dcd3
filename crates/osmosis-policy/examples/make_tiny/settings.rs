//! Every number that decides what `make_tiny` makes.

use serde::Serialize;

/// The default is what `builtin/tiny` is made with; flags of `make_tiny` change it for experiments.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Settings {
    /// Where the random numbers of the tokenizer's texts, the initial weights and the conversations start.
    pub(crate) seed: u64,
    pub(crate) updates: usize,
    /// Conversations per update.
    pub(crate) batch: usize,
    /// The highest learning rate.
    pub(crate) lr: f64,
    /// Updates in which the learning rate goes up.
    pub(crate) warm_up: usize,
    /// What is left of the learning rate at the end.
    pub(crate) last_lr_share: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) epsilon: f64,
    pub(crate) weight_decay: f64,
    pub(crate) max_gradient_norm: f64,
    pub(crate) tokens_per_piece: usize,
    /// How often the operation of a conversation is the one that its question asks for: as often as each
    /// wrong one but the decoy, so that nothing tells which is right.
    pub(crate) right_operation: f64,
    /// How often it is the decoy of the question's words. The other six share the rest.
    pub(crate) decoy_operation: f64,
    /// How often the numbers are in the order that the question asks for.
    pub(crate) right_order: f64,
    /// An upper bound: fewer when the texts give no more.
    pub(crate) vocabulary: usize,
    /// Conversations that the tokenizer is trained on.
    pub(crate) tokenizer_texts: usize,
    /// A token is not made of what is rarer.
    pub(crate) token_min_frequency: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            updates: 600,
            batch: 64,
            lr: 3e-3,
            warm_up: 50,
            last_lr_share: 0.05,
            beta1: 0.9,
            beta2: 0.98,
            epsilon: 1e-8,
            weight_decay: 0.01,
            max_gradient_norm: 1.0,
            tokens_per_piece: 4096,
            right_operation: 0.10,
            decoy_operation: 0.30,
            right_order: 0.7,
            vocabulary: 512,
            tokenizer_texts: 4000,
            token_min_frequency: 2,
        }
    }
}

impl Settings {
    /// Up in a straight line, then down along a cosine.
    pub(crate) fn learning_rate(&self, update: usize) -> f64 {
        let up = (update + 1) as f64 / self.warm_up as f64;
        let along = update as f64 / self.updates as f64;
        let cosine = 0.5 * (1.0 + (along * std::f64::consts::PI).cos());
        self.lr * up.min(1.0) * (self.last_lr_share + (1.0 - self.last_lr_share) * cosine)
    }
}
