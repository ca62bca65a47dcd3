//! What a token endpoint and those who ask it exchange: a request in JSON, then one line of JSON for each event.
//! Floating-point numbers travel as their bits, so that nothing is rounded and nothing has to be finite.

use std::fmt::Write as _;

use bytes::{BufMut, BytesMut};
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    Constraint, DrawKey, GenerationError, GenerationRequest, LogprobsOf, RemoteFault, SampledToken,
    StopReason,
};
use serde::{Deserialize, Serialize};

/// An engine is below this by its name, and described there with GET. The number is that of the protocol.
const ENGINES_PATH: &str = "/tokens/v1/";
/// Below an engine: where tokens are sampled, with POST.
const GENERATE: &str = "generate";
pub(super) const EVENTS_TYPE: &str = "application/x-ndjson";

/// More likely tokens than anybody may ask for at a gateway.
const MOST_ALTERNATIVES: usize = 1024;

/// What of an engine is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Describe,
    Generate,
}

impl Route {
    pub(super) fn path(self, engine: &str) -> String {
        match self {
            Self::Describe => format!("{ENGINES_PATH}{engine}"),
            Self::Generate => format!("{ENGINES_PATH}{engine}/{GENERATE}"),
        }
    }

    /// The engine's name, and what of it is asked for.
    pub(super) fn parse(path: &str) -> Option<(&str, Self)> {
        match path.strip_prefix(ENGINES_PATH)?.split_once('/') {
            None => Some((&path[ENGINES_PATH.len()..], Self::Describe)),
            Some((engine, GENERATE)) => Some((engine, Self::Generate)),
            Some(_) => None,
        }
    }
}

/// What a caller must know before it asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) context_length: usize,
    pub(super) version: u64,
    /// What the logprobs of every answer are.
    #[serde(with = "LogprobsName")]
    pub(super) logprobs: LogprobsOf,
    /// Whether requests may have a grammar. Older endpoints do not say, and take none.
    #[serde(default)]
    pub(super) constrains: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "LogprobsOf", rename_all = "snake_case")]
enum LogprobsName {
    Tempered,
    Untempered,
    Filtered,
    Unknown,
}

/// A [`GenerationRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireRequest {
    prompt: Vec<u32>,
    max_tokens: usize,
    temperature_bits: u32,
    top_p_bits: u32,
    top_k: usize,
    stop_ids: Vec<u32>,
    alternatives: usize,
    /// In hexadecimal digits.
    key: String,
    /// The grammar to follow, for endpoints that say that they take one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grammar: Option<String>,
}

impl From<&GenerationRequest> for WireRequest {
    fn from(request: &GenerationRequest) -> Self {
        let key = &request.key.0;
        Self {
            prompt: request.prompt.clone(),
            max_tokens: request.max_tokens,
            temperature_bits: request.temperature.to_bits(),
            top_p_bits: request.top_p.to_bits(),
            top_k: request.top_k,
            stop_ids: request.stop_ids.clone(),
            alternatives: request.alternatives,
            key: key.iter().fold(String::new(), |mut text, byte| {
                // Writing into a `String` cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            }),
            grammar: request
                .constraint
                .as_ref()
                .map(|constraint| constraint.grammar.to_string()),
        }
    }
}

impl WireRequest {
    /// The request; an `Err` says what is wrong with it.
    pub(super) fn checked(self) -> Result<GenerationRequest, String> {
        let temperature = f32::from_bits(self.temperature_bits);
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(format!("`temperature_bits` is {temperature}"));
        }
        let top_p = f32::from_bits(self.top_p_bits);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(format!("`top_p_bits` is {top_p}"));
        }
        if self.alternatives > MOST_ALTERNATIVES {
            return Err(format!(
                "`alternatives` is {}; {MOST_ALTERNATIVES} are the most",
                self.alternatives
            ));
        }
        let key = key_in(&self.key).ok_or("`key` is not 64 hexadecimal digits")?;
        Ok(GenerationRequest {
            prompt: self.prompt,
            max_tokens: self.max_tokens,
            temperature,
            top_p,
            top_k: self.top_k,
            stop_ids: self.stop_ids,
            alternatives: self.alternatives,
            key,
            constraint: self.grammar.map(|grammar| Constraint {
                grammar: grammar.into(),
            }),
        })
    }
}

fn key_in(text: &str) -> Option<DrawKey> {
    let digits = text.as_bytes();
    let mut key = [0; 32];
    if digits.len() != 2 * key.len() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(DrawKey(key))
}

/// A line of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// The engine has the request; these weights would sample its first token.
    Begun {
        version: u64,
    },
    Token(TokenLine),
    /// There is nothing new, and the endpoint is there.
    Alive,
    End(#[serde(with = "StopName")] StopReason),
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenLine {
    id: u32,
    logprob_bits: u32,
    version: u64,
    /// Each with the bits of its logprob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<(u32, u32)>,
    /// How many tokens the grammar allowed, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allowed: Option<u32>,
}

impl From<&SampledToken> for TokenLine {
    fn from(token: &SampledToken) -> Self {
        let alternatives = token.alternatives.iter();
        Self {
            id: token.id,
            logprob_bits: token.logprob.to_bits(),
            version: token.version.0,
            alternatives: alternatives
                .map(|(id, logprob)| (*id, logprob.to_bits()))
                .collect(),
            allowed: token.allowed,
        }
    }
}

impl From<TokenLine> for SampledToken {
    fn from(line: TokenLine) -> Self {
        let alternatives = line.alternatives.into_iter();
        Self {
            id: line.id,
            logprob: f32::from_bits(line.logprob_bits),
            version: PolicyVersion(line.version),
            alternatives: alternatives
                .map(|(id, bits)| (id, f32::from_bits(bits)))
                .collect(),
            allowed: line.allowed,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "StopReason", rename_all = "snake_case")]
enum StopName {
    Stop,
    Length,
    Cancelled,
}

/// A [`GenerationError`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Failure {
    PromptTooLong {
        prompt: usize,
        context: usize,
    },
    PromptEmpty,
    UnknownToken {
        id: u32,
        vocabulary: usize,
    },
    NotFinite,
    Constraint {
        message: String,
    },
    ShutDown,
    Remote {
        #[serde(with = "FaultName")]
        kind: RemoteFault,
        message: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RemoteFault", rename_all = "snake_case")]
enum FaultName {
    Unreachable,
    TimedOut,
    Overloaded,
    ServerError,
    Misconfigured,
    BadReply,
    CutShort,
}

impl From<GenerationError> for Failure {
    fn from(error: GenerationError) -> Self {
        match error {
            GenerationError::PromptTooLong { prompt, context } => {
                Self::PromptTooLong { prompt, context }
            }
            GenerationError::PromptEmpty => Self::PromptEmpty,
            GenerationError::UnknownToken { id, vocabulary } => {
                Self::UnknownToken { id, vocabulary }
            }
            GenerationError::NotFinite => Self::NotFinite,
            GenerationError::Constraint { message } => Self::Constraint { message },
            GenerationError::ShutDown => Self::ShutDown,
            GenerationError::Remote { kind, message } => Self::Remote { kind, message },
        }
    }
}

impl From<Failure> for GenerationError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::PromptTooLong { prompt, context } => Self::PromptTooLong { prompt, context },
            Failure::PromptEmpty => Self::PromptEmpty,
            Failure::UnknownToken { id, vocabulary } => Self::UnknownToken { id, vocabulary },
            Failure::NotFinite => Self::NotFinite,
            Failure::Constraint { message } => Self::Constraint { message },
            Failure::ShutDown => Self::ShutDown,
            Failure::Remote { kind, message } => Self::Remote { kind, message },
        }
    }
}

impl Event {
    pub(super) fn write(&self, lines: &mut BytesMut) {
        // No event holds anything that JSON has no word for.
        if serde_json::to_writer(&mut lines.writer(), self).is_ok() {
            lines.put_u8(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::LineBuffer;
    use super::*;

    fn request() -> GenerationRequest {
        GenerationRequest {
            prompt: vec![1, u32::MAX],
            max_tokens: usize::MAX,
            temperature: 0.1 + 0.2,
            top_p: f32::from_bits(1.0_f32.to_bits() - 1),
            top_k: 0,
            stop_ids: vec![7],
            alternatives: 3,
            key: DrawKey(std::array::from_fn(|at| u8::try_from(at * 7).unwrap())),
            constraint: Some(Constraint {
                grammar: "start: \"a\"\n".into(),
            }),
        }
    }

    #[test]
    fn a_path_names_the_engine_and_what_of_it() {
        for route in [Route::Describe, Route::Generate] {
            assert_eq!(Route::parse(&route.path("judge")), Some(("judge", route)));
        }
        assert_eq!(Route::parse("/tokens/v1/judge/other"), None);
        assert_eq!(Route::parse("/tokens/v2/judge"), None);
    }

    #[test]
    fn a_request_arrives_as_it_was() {
        let sent = serde_json::to_vec(&WireRequest::from(&request())).unwrap();
        let asked: WireRequest = serde_json::from_slice(&sent).unwrap();
        assert_eq!(asked.checked(), Ok(request()));
    }

    #[test]
    fn a_request_without_a_grammar_is_one_that_older_endpoints_read() {
        let mut free = request();
        free.constraint = None;
        let sent = serde_json::to_value(WireRequest::from(&free)).unwrap();
        assert_eq!(sent.get("grammar"), None);
        let older = r#"{"context_length": 8, "version": 1, "logprobs": "tempered"}"#;
        assert!(
            !serde_json::from_str::<Description>(older)
                .unwrap()
                .constrains
        );
    }

    #[test]
    fn numbers_that_no_engine_takes_are_refused() {
        let refused = |change: &dyn Fn(&mut WireRequest)| {
            let mut asked = WireRequest::from(&request());
            change(&mut asked);
            asked.checked().unwrap_err()
        };
        let bits = f32::NAN.to_bits();
        assert!(refused(&|asked| asked.temperature_bits = bits).contains("NaN"));
        assert!(refused(&|asked| asked.temperature_bits = (-1.0_f32).to_bits()).contains("-1"));
        assert!(refused(&|asked| asked.top_p_bits = 0).contains("top_p"));
        assert!(refused(&|asked| asked.alternatives = 4096).contains("1024"));
        assert!(refused(&|asked| asked.key.truncate(63)).contains("key"));
        assert!(refused(&|asked| asked.key.replace_range(0..1, "g")).contains("key"));
    }

    #[test]
    fn events_arrive_bit_for_bit_however_they_are_cut() {
        let tokens = [
            (0.0, vec![]),
            (-0.0, vec![(1, f32::NEG_INFINITY)]),
            (-1.000_000_1, vec![(2, -1e-45), (3, f32::MIN)]),
            (f32::from_bits(0x7fc0_1234), vec![]),
        ];
        let tokens: Vec<SampledToken> = tokens
            .into_iter()
            .map(|(logprob, alternatives)| SampledToken {
                id: 9,
                logprob,
                version: PolicyVersion(u64::MAX),
                allowed: (!alternatives.is_empty()).then_some(7),
                alternatives,
            })
            .collect();
        let mut sent: Vec<Event> = tokens
            .iter()
            .map(|token| Event::Token(token.into()))
            .collect();
        sent.push(Event::Begun { version: 3 });
        sent.push(Event::Alive);
        for reason in [StopReason::Stop, StopReason::Length, StopReason::Cancelled] {
            sent.push(Event::End(reason));
        }
        let failures = [
            GenerationError::PromptTooLong {
                prompt: 9,
                context: 8,
            },
            GenerationError::PromptEmpty,
            GenerationError::UnknownToken {
                id: 5,
                vocabulary: 4,
            },
            GenerationError::NotFinite,
            GenerationError::Constraint {
                message: "no".to_owned(),
            },
            GenerationError::ShutDown,
            GenerationError::Remote {
                kind: RemoteFault::CutShort,
                message: "two\nlines".to_owned(),
            },
        ];
        for error in &failures {
            let failure = Failure::from(error.clone());
            assert_eq!(GenerationError::from(failure.clone()), *error);
            sent.push(Event::Failed(failure));
        }
        let mut bytes = BytesMut::new();
        for event in &sent {
            event.write(&mut bytes);
        }
        for piece in [1, 7, bytes.len()] {
            let mut lines = LineBuffer::default();
            let mut heard = Vec::new();
            for chunk in bytes.chunks(piece) {
                lines.push(chunk);
                while let Some(event) = lines.next().unwrap() {
                    heard.push(event);
                }
            }
            assert_eq!(heard, sent);
        }
        let first = TokenLine::from(&tokens[2]);
        let back = SampledToken::from(first);
        assert_eq!(back.logprob.to_bits(), tokens[2].logprob.to_bits());
        assert_eq!(back.alternatives, tokens[2].alternatives);
    }

    #[test]
    fn lines_stay_what_they_are() {
        // Nodes of one version ask a controller of another.
        let mut bytes = BytesMut::new();
        let token = SampledToken {
            id: 5,
            logprob: -0.5,
            version: PolicyVersion(2),
            alternatives: vec![(5, -0.5)],
            allowed: None,
        };
        for event in [
            Event::Begun { version: 2 },
            Event::Token((&token).into()),
            Event::Alive,
            Event::End(StopReason::Length),
            Event::Failed(Failure::ShutDown),
        ] {
            event.write(&mut bytes);
        }
        insta::assert_snapshot!(String::from_utf8(bytes.to_vec()).unwrap(), @r#"
        {"begun":{"version":2}}
        {"token":{"id":5,"logprob_bits":3204448256,"version":2,"alternatives":[[5,3204448256]]}}
        "alive"
        {"end":"length"}
        {"failed":"shut_down"}
        "#);
    }
}
