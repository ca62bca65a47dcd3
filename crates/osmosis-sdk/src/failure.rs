//! Turns an error of user code into something a report can show.

use std::error::Error as StdError;
use std::io::ErrorKind;

use osmosis_core::{ErrorCategory, Failure};
use rustix::io::Errno;

use crate::{SdkError, TaskError};

/// Longest message and longest chain of causes that a report carries, in characters.
const MAX_MESSAGE: usize = 4_000;
const MAX_CAUSES: usize = 16_000;

/// A chain of causes longer than this is a circle.
const MAX_CHAIN: usize = 32;

/// The kind of an error whose type can't be told.
const UNNAMED: &str = "error";

/// Describes an error that user code returned.
pub(crate) fn failure_of(error: &(dyn StdError + 'static)) -> Failure {
    let category = chain(error)
        .find_map(known_category)
        .unwrap_or(ErrorCategory::AgentError);
    let told = match error.downcast_ref::<TaskError>() {
        Some(task_error) => task_error.inner(),
        None => error,
    };
    let mut message = told.to_string();
    let out_of_descriptors = chain(error).any(is_out_of_descriptors);
    let kind = match told.downcast_ref::<SdkError>() {
        Some(ours) => {
            if let Some(hint) = ours.hint() {
                message = format!("{message}; {hint}");
            }
            ours.kind().to_owned()
        }
        None => named(told)
            .map(str::to_owned)
            .or_else(|| name_in_debug(told, &message))
            .unwrap_or_else(|| UNNAMED.to_owned()),
    };
    let kind = if out_of_descriptors {
        message = format!("{kind}: {message}");
        Failure::OUT_OF_DESCRIPTORS.to_owned()
    } else {
        kind
    };
    Failure {
        category,
        kind,
        message: shorten(message, MAX_MESSAGE),
        traceback: causes(told).map(|text| shorten(text, MAX_CAUSES)),
    }
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source()).take(MAX_CHAIN)
}

fn known_category(error: &(dyn StdError + 'static)) -> Option<ErrorCategory> {
    if let Some(error) = error.downcast_ref::<TaskError>() {
        return Some(error.category());
    }
    if let Some(error) = error.downcast_ref::<SdkError>() {
        return Some(error.category());
    }
    if error.is::<tokio::time::error::Elapsed>() {
        return Some(ErrorCategory::Timeout);
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return (error.kind() == ErrorKind::TimedOut).then_some(ErrorCategory::Timeout);
    }
    if let Some(category) = crate::clients::category_of(error) {
        return Some(category);
    }
    if is_http_client_error(error) {
        return Some(ErrorCategory::HttpError);
    }
    is_validation_error(error).then_some(ErrorCategory::ValidationError)
}

/// Of this process or of the machine.
fn is_out_of_descriptors(error: &(dyn StdError + 'static)) -> bool {
    let code = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::raw_os_error);
    code.is_some_and(|code| {
        [Errno::MFILE, Errno::NFILE]
            .map(Errno::raw_os_error)
            .contains(&code)
    })
}

fn is_validation_error(error: &(dyn StdError + 'static)) -> bool {
    error.is::<serde_json::Error>()
        || error.is::<std::num::ParseIntError>()
        || error.is::<std::num::ParseFloatError>()
        || error.is::<std::num::TryFromIntError>()
        || error.is::<std::str::ParseBoolError>()
        || error.is::<std::char::ParseCharError>()
        || error.is::<std::str::Utf8Error>()
        || error.is::<std::string::FromUtf8Error>()
}

/// By the name it shows: the client may be any version, and is no dependency of ours.
fn is_http_client_error(error: &(dyn StdError + 'static)) -> bool {
    let shown = format!("{error:?}");
    ["reqwest::Error", "hyper::Error", "hyper_util::client::"]
        .iter()
        .any(|name| shown.starts_with(name))
}

/// Errors of everyday whose `Debug` does not say what they are.
fn named(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    if error.is::<std::io::Error>() {
        Some("io::Error")
    } else if error.is::<serde_json::Error>() {
        Some("serde_json::Error")
    } else {
        crate::clients::name_of(error)
    }
}

/// The name at the start of a derived `Debug`: of the type, or of the variant. An erased error has
/// no other name; one whose `Debug` is its message has none at all.
fn name_in_debug(error: &(dyn StdError + 'static), message: &str) -> Option<String> {
    let shown = format!("{error:?}");
    let end = shown
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | ':')))
        .unwrap_or(shown.len());
    let (name, rest) = shown.split_at(end);
    let last = name.rsplit("::").next()?;
    let named = last.starts_with(|c: char| c.is_ascii_uppercase())
        && (rest.is_empty() || rest.starts_with('(') || rest.starts_with(" {"))
        && shown != message;
    named.then(|| name.to_owned())
}

fn causes(error: &(dyn StdError + 'static)) -> Option<String> {
    let causes: Vec<String> = chain(error)
        .skip(1)
        .map(|cause| format!("caused by: {cause}"))
        .collect();
    (!causes.is_empty()).then(|| format!("{error}\n{}", causes.join("\n")))
}

pub(crate) fn shorten(text: String, limit: usize) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text;
    }
    let head: String = text.chars().take(limit / 3).collect();
    let tail: String = text.chars().skip(length - (limit - limit / 3)).collect();
    format!("{head}\n… {} characters left out …\n{tail}", length - limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[derive(Debug, thiserror::Error)]
    #[error("step {step} failed")]
    struct StepFailed {
        step: u32,
        source: Error,
    }

    fn check(error: impl Into<Error>, category: ErrorCategory, kind: &str, message: &str) {
        let failure = failure_of(&*error.into());
        assert_eq!(failure.category, category, "{failure:?}");
        assert_eq!(failure.kind, kind, "{failure:?}");
        assert_eq!(failure.message, message, "{failure:?}");
    }

    #[test]
    fn an_error_is_sorted_by_what_it_is() {
        use ErrorCategory::{AgentError, HttpError, Timeout, ValidationError};
        check("it broke", AgentError, "error", "it broke");
        check(
            "x".parse::<i32>().unwrap_err(),
            ValidationError,
            "ParseIntError",
            "invalid digit found in string",
        );
        check(
            std::io::Error::from(ErrorKind::TimedOut),
            Timeout,
            "io::Error",
            "timed out",
        );
        check(
            serde_json::from_str::<u8>("-").unwrap_err(),
            ValidationError,
            "serde_json::Error",
            "EOF while parsing a value at line 1 column 1",
        );
        check(TaskError::http("503"), HttpError, "error", "503");
        check(
            TaskError::timeout("x".parse::<f64>().unwrap_err()),
            Timeout,
            "ParseFloatError",
            "invalid float literal",
        );
        check(
            SdkError::DuplicateSample {
                name: "a".to_owned(),
                rollout: "r0-0".to_owned(),
            },
            ValidationError,
            "duplicate_sample",
            "a sample named `a` is already registered in rollout `r0-0`; give each conversation a \
             name of its own",
        );
    }

    #[test]
    fn a_cause_decides_the_category_and_is_told() {
        let error = StepFailed {
            step: 3,
            source: "x".parse::<i32>().unwrap_err().into(),
        };
        let failure = failure_of(&error);
        assert_eq!(failure.category, ErrorCategory::ValidationError);
        assert_eq!(failure.kind, "StepFailed");
        assert_eq!(failure.message, "step 3 failed");
        assert_eq!(
            failure.traceback.unwrap(),
            "step 3 failed\ncaused by: invalid digit found in string"
        );
    }

    #[test]
    fn a_machine_without_descriptors_is_named_wherever_it_stands_in_the_chain() {
        let error = std::io::Error::from(Errno::MFILE);
        let message = "StepFailed: step 4 failed";
        let source = Error::from(error);
        let failed = StepFailed { step: 4, source };
        check(
            failed,
            ErrorCategory::AgentError,
            "out_of_descriptors",
            message,
        );
        let error = std::io::Error::from(Errno::NOENT);
        check(
            error,
            ErrorCategory::AgentError,
            "io::Error",
            "No such file or directory (os error 2)",
        );
    }

    #[test]
    fn a_client_of_any_version_is_known_by_its_name() {
        struct Foreign;
        impl std::fmt::Debug for Foreign {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("reqwest::Error { kind: Request }")
            }
        }
        impl std::fmt::Display for Foreign {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("connection refused")
            }
        }
        impl StdError for Foreign {}
        check(
            Foreign,
            ErrorCategory::HttpError,
            "reqwest::Error",
            "connection refused",
        );
    }

    #[test]
    fn a_long_message_keeps_its_head_and_its_end() {
        let failure = failure_of(&*Error::from(format!("head{}end", "é".repeat(10_000))));
        assert!(failure.message.starts_with("headé"), "{}", failure.message);
        assert!(failure.message.ends_with("éend"), "{}", failure.message);
        assert!(failure.message.chars().count() < MAX_MESSAGE + 60);
    }
}
