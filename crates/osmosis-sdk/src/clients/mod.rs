//! Clients of other crates, bound to a rollout. Each behind a feature of its own.

#[cfg(any(feature = "async-openai", feature = "rig"))]
mod http;
#[cfg(feature = "async-openai")]
mod openai;
#[cfg(feature = "rig")]
mod rig;
#[cfg(all(test, any(feature = "async-openai", feature = "rig")))]
mod test_server;

use std::error::Error as StdError;

use osmosis_core::ErrorCategory;

/// The category of an error of one of these clients.
pub(crate) fn category_of(error: &(dyn StdError + 'static)) -> Option<ErrorCategory> {
    let known: &[fn(&(dyn StdError + 'static)) -> Option<ErrorCategory>] = &[
        #[cfg(feature = "async-openai")]
        openai::category_of,
        #[cfg(feature = "rig")]
        rig::category_of,
    ];
    known.iter().find_map(|category_of| category_of(error))
}

/// The name of an error of one of these clients, when its `Debug` does not say it.
pub(crate) fn name_of(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    #[cfg(feature = "rig")]
    if let Some(name) = rig::name_of(error) {
        return Some(name);
    }
    let _ = error;
    None
}
