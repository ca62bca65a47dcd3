/// `[sampling]` of the config, and whether it fills gaps or wins.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sampling {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// `true` in training: these values replace what the call says.
    pub overrides: bool,
}

impl Sampling {
    /// The likeliest token every time, whatever a call says.
    #[must_use]
    pub fn greedy(mut self) -> Self {
        self.temperature = Some(0.0);
        self.top_p = Some(1.0);
        self.overrides = true;
        self
    }
}
