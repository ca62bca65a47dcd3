//! What a trainer asks for: path, query, `Accept`.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use osmosis_gateway::ControlRefusal;

/// An Arrow IPC stream.
pub(super) const ARROW: &str = "application/vnd.apache.arrow.stream";
const JSON: &str = "application/json";

/// How long a trainer waits for a batch, unless it says.
const USUAL_WAIT: Duration = Duration::from_secs(30);
/// Longer than this no request is held.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrainerRequest {
    Batches,
    Acknowledgement(u64),
}

impl TrainerRequest {
    /// `below` is the path after that of the service.
    pub(super) fn at(below: &str) -> Option<Self> {
        let rest = below.strip_prefix("/batches")?;
        if rest.is_empty() {
            return Some(Self::Batches);
        }
        let number = rest.strip_prefix('/')?.strip_suffix("/ack")?;
        Some(Self::Acknowledgement(digits(number)?))
    }
}

/// A batch, please.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Poll {
    pub(super) wait: Duration,
    /// Only batches with higher numbers.
    pub(super) after: Option<u64>,
    pub(super) form: Form,
}

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Arrow,
}

impl Poll {
    pub(super) fn read(query: Option<&str>, headers: &HeaderMap) -> Result<Self, ControlRefusal> {
        let mut poll = Self {
            wait: USUAL_WAIT,
            after: None,
            form: Form::accepted(headers)?,
        };
        let pairs = query.unwrap_or_default().split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "wait" => poll.wait = wait(value)?,
                "after" => {
                    let number = digits(value).ok_or_else(|| {
                        bad(format!("`after` is `{value}`, not the number of a batch"))
                    })?;
                    poll.after = Some(number);
                }
                unknown => {
                    return Err(bad(format!(
                        "`{unknown}` is not known here; there are `wait` and `after`"
                    )));
                }
            }
        }
        Ok(poll)
    }
}

fn wait(value: &str) -> Result<Duration, ControlRefusal> {
    let seconds = value
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match seconds {
        Some(wait) if wait <= LONGEST_WAIT => Ok(wait),
        Some(_) => Err(bad(format!(
            "`wait` is `{value}`; no request is held for more than {} seconds",
            LONGEST_WAIT.as_secs()
        ))),
        None => Err(bad(format!("`wait` is `{value}`, not a number of seconds"))),
    }
}

impl Form {
    /// Arrow where it is named and nothing is liked better; JSON where that will do.
    fn accepted(headers: &HeaderMap) -> Result<Self, ControlRefusal> {
        let mut json: Option<f32> = None;
        let mut arrow: Option<f32> = None;
        let mut named = false;
        let values = headers.get_all(header::ACCEPT).iter();
        let ranges = values.filter_map(|value| value.to_str().ok());
        for range in ranges.flat_map(|value| value.split(',')) {
            named = true;
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let quality = parts
                .find_map(|part| part.strip_prefix("q=")?.parse().ok())
                .unwrap_or(1.0);
            if media.eq_ignore_ascii_case(ARROW) {
                arrow = Some(quality);
            } else if media.eq_ignore_ascii_case(JSON) {
                json = Some(quality);
            } else if matches!(media, "*/*" | "application/*") {
                json = json.or(Some(quality));
            }
        }
        let json = json.filter(|quality| *quality > 0.0);
        match arrow.filter(|quality| *quality > 0.0) {
            Some(arrow) if json.is_none_or(|json| json <= arrow) => Ok(Self::Arrow),
            Some(_) => Ok(Self::Json),
            None if json.is_some() || !named => Ok(Self::Json),
            None => Err(ControlRefusal::new(
                StatusCode::NOT_ACCEPTABLE,
                "not_acceptable",
                format!("batches are to be had as `{JSON}` and as `{ARROW}`"),
            )),
        }
    }
}

fn bad(message: String) -> ControlRefusal {
    ControlRefusal::new(StatusCode::BAD_REQUEST, "invalid_request", message)
}

/// A number in the plainest way of writing it.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(query: &str, accept: &str) -> Result<Poll, ControlRefusal> {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
        }
        Poll::read(Some(query), &headers)
    }

    #[test]
    fn paths_are_those_of_batches_and_of_acknowledgements() {
        assert_eq!(
            TrainerRequest::at("/batches"),
            Some(TrainerRequest::Batches)
        );
        assert_eq!(
            TrainerRequest::at("/batches/17/ack"),
            Some(TrainerRequest::Acknowledgement(17))
        );
        for path in [
            "",
            "/",
            "/batches/",
            "/batches/x/ack",
            "/batches/+1/ack",
            "/batches//ack",
            "/batches/1",
        ] {
            assert_eq!(TrainerRequest::at(path), None, "{path}");
        }
    }

    #[test]
    fn a_request_waits_half_a_minute_for_the_oldest_batch_unless_it_says_otherwise() {
        let usual = read("", "").unwrap();
        assert_eq!((usual.wait, usual.after), (Duration::from_secs(30), None));
        let asked = read("wait=0.5&after=7", "").unwrap();
        assert_eq!(
            (asked.wait, asked.after),
            (Duration::from_millis(500), Some(7))
        );
        for (query, words) in [
            ("wait=301", "no request is held for more than 300 seconds"),
            ("wait=-1", "not a number of seconds"),
            ("wait=inf", "not a number of seconds"),
            ("wait", "not a number of seconds"),
            ("after=x", "not the number of a batch"),
            ("since=3", "`since` is not known here"),
        ] {
            let refusal = read(query, "").unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{query}");
            assert!(
                refusal.message.contains(words),
                "{query}: {}",
                refusal.message
            );
        }
    }

    #[test]
    fn the_form_is_the_one_that_is_liked_best() {
        for (accept, expected) in [
            ("", Some(Form::Json)),
            ("*/*", Some(Form::Json)),
            ("application/json", Some(Form::Json)),
            ("application/vnd.apache.arrow.stream", Some(Form::Arrow)),
            (
                "application/vnd.apache.arrow.stream, application/json;q=0.5",
                Some(Form::Arrow),
            ),
            (
                "application/vnd.apache.arrow.stream;q=0.1, application/json",
                Some(Form::Json),
            ),
            (
                "application/json;q=0, application/vnd.apache.arrow.stream",
                Some(Form::Arrow),
            ),
            ("text/csv", None),
            ("application/json;q=0", None),
        ] {
            let form = read("", accept).map(|poll| poll.form);
            assert_eq!(form.as_ref().ok(), expected.as_ref(), "{accept}");
            if let Err(refusal) = form {
                assert_eq!(refusal.status, StatusCode::NOT_ACCEPTABLE);
            }
        }
    }
}
