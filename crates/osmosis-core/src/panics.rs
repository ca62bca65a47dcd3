//! Libraries that panic over what others wrote.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

static QUIET: Once = Once::new();

/// What a library said when it panicked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the library that reads it failed: {0}")]
pub struct LibraryPanic(String);

/// Runs a part of a library that reads files or texts of others. Over a damaged one it may stumble over its own
/// assumptions, which is the file's fault and neither the end of the program nor a message to its user. What was being
/// read must be given up afterwards.
pub fn guarded<T>(read: impl FnOnce() -> T) -> Result<T, LibraryPanic> {
    QUIET.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                report(panic);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(outer);
    result.map_err(|panic| LibraryPanic(words_of(&*panic)))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stumble_is_an_error_and_other_panics_stay_panics() {
        let stumble = guarded::<()>(|| {
            assert_eq!(guarded(|| 3), Ok(3));
            panic!("an assumption: {}", 7)
        });
        let stumble: LibraryPanic = stumble.unwrap_err();
        assert_eq!(
            stumble.to_string(),
            "the library that reads it failed: an assumption: 7"
        );
        assert!(!GUARDED.get());
        assert!(catch_unwind(|| panic!("a bug of ours")).is_err());
    }
}
