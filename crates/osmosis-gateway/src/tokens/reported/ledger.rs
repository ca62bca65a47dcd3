//! Collects what a reply says of tokens, and makes the records of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use osmosis_core::generation::LogprobsOf;
use osmosis_core::{PolicyVersion, SampleId};
use osmosis_tokens::TokenRecord;
use parking_lot::Mutex;

use super::reply::News;
use super::request::Settings;
use crate::policy::{TokenAccount, TokenLedger};
use crate::sessions::call_history::{CallHistory, Delivered, SampleCalls, Sampled};

/// More choices than any server gives.
const MAX_CHOICES: usize = 1024;

#[derive(Debug)]
pub(super) struct Ledger {
    history: Arc<CallHistory>,
    sample: SampleId,
    /// When the call was sent. Servers that report ids do not say who sampled them: should new weights come
    /// meanwhile, tokens count as older than they are, never as newer.
    version: PolicyVersion,
    settings: Settings,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    prompt: Option<Vec<u32>>,
    choices: BTreeMap<usize, Choice>,
    completion_tokens: Option<u64>,
    whole: bool,
}

#[derive(Debug, Default)]
struct Choice {
    /// `None` while no piece had any.
    ids: Option<Vec<u32>>,
    logprobs: Vec<f32>,
    finished: bool,
}

impl Ledger {
    pub(super) fn new(
        history: Arc<CallHistory>,
        sample: SampleId,
        version: PolicyVersion,
        settings: Settings,
    ) -> Self {
        Self {
            history,
            sample,
            version,
            settings,
            heard: Mutex::default(),
        }
    }

    pub(super) fn note(&self, news: News) {
        let mut heard = self.heard.lock();
        if news.prompt_ids.is_some() {
            heard.prompt = news.prompt_ids;
        }
        heard.completion_tokens = news.completion_tokens.or(heard.completion_tokens);
        for told in news.choices {
            if told.index >= MAX_CHOICES {
                continue;
            }
            let choice = heard.choices.entry(told.index).or_default();
            if let Some(ids) = told.ids {
                choice.ids.get_or_insert_default().extend(ids);
            }
            choice.logprobs.extend(told.logprobs.unwrap_or_default());
            choice.finished |= told.finished;
        }
    }

    /// The reply came in one piece, so it is complete.
    pub(super) fn whole(&self) {
        self.heard.lock().whole = true;
    }

    fn record(
        &self,
        calls: &SampleCalls,
        prompt: &[u32],
        choice: Choice,
        whole: bool,
    ) -> TokenRecord {
        let ids = choice.ids.unwrap_or_default();
        let (logprobs, logprobs_of) = if choice.logprobs.len() == ids.len() {
            (choice.logprobs, self.settings.logprobs_of)
        } else {
            (vec![0.0; ids.len()], LogprobsOf::Unknown)
        };
        let sampled = Sampled {
            versions: vec![self.version; ids.len()],
            ids,
            logprobs,
            temperature: self.settings.temperature,
            logprobs_of,
            one_of_several: self.settings.choices > 1,
            constraint: None,
        };
        let told = if whole || choice.finished {
            Delivered::Ids
        } else {
            Delivered::Nothing
        };
        match calls.plan_ids(prompt, 1).pop() {
            Some(planned) => calls.finished(planned.prompt, sampled, told),
            None => calls.unknown("the call could not be counted"),
        }
    }
}

impl Heard {
    /// Why the ids are not known, when they are not.
    fn problem(&self) -> Option<String> {
        let asked = "though `return_token_ids` was asked for (vLLM since 0.10.2 knows it)";
        if self.prompt.is_none() {
            return Some(format!("the server sent no `prompt_token_ids`, {asked}"));
        }
        if self.choices.values().any(|choice| choice.ids.is_none()) {
            return Some(format!("the server sent no `token_ids`, {asked}"));
        }
        let sent: usize = self.choices.values().map(Choice::tokens).sum();
        let over = self.whole || self.choices.values().all(|choice| choice.finished);
        match self.completion_tokens {
            Some(counted) if over && counted != sent as u64 => Some(format!(
                "the server sent {sent} `token_ids` and counts {counted} tokens"
            )),
            _ => None,
        }
    }
}

impl Choice {
    fn tokens(&self) -> usize {
        self.ids.as_ref().map_or(0, Vec::len)
    }
}

impl TokenLedger for Ledger {
    fn close(&self) -> TokenAccount {
        let heard = std::mem::take(&mut *self.heard.lock());
        let calls = self.history.calls_of(&self.sample, self.settings.choices);
        let problem = heard.problem();
        let prompt = heard.prompt.unwrap_or_default();
        let mut account = TokenAccount {
            prompt_tokens: prompt.len() as u64,
            completion_tokens: heard
                .completion_tokens
                .unwrap_or_else(|| heard.choices.values().map(|c| c.tokens() as u64).sum()),
            ..TokenAccount::default()
        };
        account.records = match problem {
            Some(why) => vec![calls.unknown(&why)],
            None => heard
                .choices
                .into_values()
                .map(|choice| self.record(&calls, &prompt, choice, heard.whole))
                .collect(),
        }
        .iter()
        .map(|record| Bytes::from(record.encode()))
        .collect();
        account
    }
}
