//! A panic of user code ends its task and is told with its place.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::PanicHookInfo;

use osmosis_core::{ErrorCategory, Failure, RolloutId};

use crate::failure::shorten;
use crate::output::{CURRENT_ROLLOUT, write_tagged};

const MAX_TRACEBACK: usize = 16_000;

/// What the hook saw. It runs on the thread that polls the task, right before the unwinding.
struct Seen {
    rollout: RolloutId,
    message: String,
    place: Option<String>,
    backtrace: Option<String>,
}

thread_local! {
    static LAST: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// Panics inside a rollout are logged in its name; others as before.
pub(crate) fn install_hook() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        match CURRENT_ROLLOUT.try_with(Clone::clone) {
            Ok(rollout) => note(rollout, info),
            Err(_) => previous(info),
        }
    }));
}

fn note(rollout: RolloutId, info: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let seen = Seen {
        message: message_of(info.payload()),
        place: info.location().map(ToString::to_string),
        backtrace: (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string()),
        rollout,
    };
    write_tagged(Some(seen.rollout.as_str()), &seen.told());
    LAST.set(Some(seen));
}

impl Seen {
    fn told(&self) -> String {
        let place = self.place.as_deref().unwrap_or("an unknown place");
        let mut text = format!("panicked at {place}:\n{}", self.message);
        if let Some(backtrace) = &self.backtrace {
            text.push('\n');
            text.push_str(backtrace);
        }
        text
    }
}

/// Describes a panic that was caught while polling the task of `rollout` on this thread.
pub(crate) fn failure_of(rollout: &RolloutId, payload: &(dyn Any + Send)) -> Failure {
    let message = message_of(payload);
    // Something older when user code resumed a panic it had caught elsewhere.
    let seen = LAST
        .take()
        .filter(|seen| seen.rollout == *rollout && seen.message == message);
    let place = seen.as_ref().and_then(|seen| seen.place.as_deref());
    Failure {
        category: ErrorCategory::AgentError,
        kind: "panic".to_owned(),
        message: match place {
            Some(place) => format!("{message} (at {place})"),
            None => message,
        },
        traceback: seen.map(|seen| shorten(seen.told(), MAX_TRACEBACK)),
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}
