use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use super::leaf::Damage;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

static QUIET: Once = Once::new();

/// Runs a part of the parquet library. Over a damaged file it may stumble over its own assumptions,
/// which is the file's fault and neither the end of the program nor a message to its user. What was
/// being read must be given up afterwards.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, Damage>) -> Result<T, Damage> {
    QUIET.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                report(panic);
            }
        }));
    });
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(false);
    result.unwrap_or_else(|_| Err(Damage::new("the parquet data is damaged")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stumble_is_damage_and_other_panics_stay_panics() {
        let stumble = guarded::<()>(|| panic!("an assumption"));
        assert_eq!(stumble.unwrap_err().message, "the parquet data is damaged");
        assert!(matches!(guarded(|| Ok(3)), Ok(3)));
        assert!(!GUARDED.get());
        assert!(catch_unwind(|| panic!("a bug of ours")).is_err());
    }
}
