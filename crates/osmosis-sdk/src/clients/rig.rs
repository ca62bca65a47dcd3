use std::error::Error as StdError;

use osmosis_core::ErrorCategory;
use rig::completion::PromptError;
use rig::http_client::{DynHttpClient, HeaderMap, HeaderValue, HttpMiddleware, Method, Uri};
use rig::providers::openai::{OpenAI, OpenAIConfig, Route};
use rig::wasm_compat::WasmBoxedFuture;
use rig::{ErrorKind, ProviderError};

use super::http::{no_client, shared_client};
use crate::{SdkError, WorkflowContext};

impl<C> WorkflowContext<C> {
    /// A client for the model calls of one sample. The model is [`crate::POLICY_MODEL`], and
    /// `completion` and `chat` are the same: the gateway speaks chat completions.
    ///
    /// ```no_run
    /// # use osmosis_sdk::{POLICY_MODEL, Result, WorkflowContext, WorkflowOutput};
    /// use rig::prelude::*;
    ///
    /// # async fn run(ctx: &WorkflowContext) -> Result<WorkflowOutput> {
    /// let agent = AgentBuilder::new(ctx.rig_client("main")?.chat(POLICY_MODEL)).build();
    /// let answer = agent.prompt(ctx.user_prompt().unwrap_or_default()).await?;
    /// Ok(WorkflowOutput::messages(&answer.messages)?)
    /// # }
    /// ```
    pub fn rig_client(&self, sample: &str) -> Result<OpenAI, SdkError> {
        let endpoint = self.endpoint(sample)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &endpoint.headers {
            let value =
                HeaderValue::from_str(value).map_err(|error| no_client(&endpoint, &error))?;
            headers.insert(*name, value);
        }
        let http = DynHttpClient::new(rig::rig_reqwest::ReqwestClient::from(shared_client(
            &endpoint,
        )?))
        .with_middleware(Identity { headers });
        Ok(OpenAIConfig::new(endpoint.api_key)
            .with_base_url(endpoint.base_url)
            .with_route(Route::Chat)
            .connect(http))
    }
}

/// Puts the headers on every call.
struct Identity {
    headers: HeaderMap,
}

impl HttpMiddleware for Identity {
    fn before_request_headers<'a>(
        &'a self,
        _method: &'a Method,
        _uri: &'a Uri,
        headers: &'a mut HeaderMap,
    ) -> WasmBoxedFuture<'a, rig::http_client::Result<()>> {
        headers.extend(self.headers.clone());
        Box::pin(async { Ok(()) })
    }
}

pub(super) fn category_of(error: &(dyn StdError + 'static)) -> Option<ErrorCategory> {
    if let Some(PromptError::Provider(error)) = error.downcast_ref() {
        return category_of_kind(error.kind());
    }
    if let Some(PromptError::Report(report)) = error.downcast_ref() {
        return category_of_kind(report.kind);
    }
    if let Some(error) = error.downcast_ref::<ProviderError>() {
        return category_of_kind(error.kind());
    }
    error
        .is::<rig::http_client::Error>()
        .then_some(ErrorCategory::HttpError)
}

/// `PromptError` passes errors of the provider on under names that say nothing.
pub(super) fn name_of(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    match error.downcast_ref::<PromptError>()? {
        PromptError::Provider(_) | PromptError::Report(_) => Some("ProviderError"),
        _ => None,
    }
}

fn category_of_kind(kind: ErrorKind) -> Option<ErrorCategory> {
    match kind {
        ErrorKind::Http
        | ErrorKind::Url
        | ErrorKind::Response
        | ErrorKind::Provider
        | ErrorKind::ProviderResponse => Some(ErrorCategory::HttpError),
        ErrorKind::Json | ErrorKind::Request => Some(ErrorCategory::ValidationError),
        ErrorKind::Timeout => Some(ErrorCategory::Timeout),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rig::completion::CompletionRequest;
    use rig::error::ErrorReport;

    use super::*;
    use crate::clients::test_server::{check_identity, context, serve_one_call};
    use crate::failure::failure_of;
    use crate::{Error, POLICY_MODEL};

    #[tokio::test]
    async fn a_call_goes_to_chat_completions_and_says_whose_it_is() {
        let (url, request) = serve_one_call();
        let client = context(&url).rig_client("50% agent ✓").unwrap();
        // Not `chat`, on purpose: this is what would go to the Responses API.
        let reply = client
            .completion(POLICY_MODEL)
            .call(CompletionRequest::new("6 × 7?"))
            .await
            .unwrap();
        assert!(format!("{reply:?}").contains("forty-two"), "{reply:?}");
        check_identity(&request.join().unwrap());
    }

    #[tokio::test]
    async fn an_error_of_the_gateway_is_an_http_error() {
        let client = context("http://127.0.0.1:1/v1").rig_client("main").unwrap();
        let call = client
            .chat(POLICY_MODEL)
            .call(CompletionRequest::new("6 × 7?"));
        let failure = failure_of(&*Error::from(call.await.unwrap_err()));
        assert_eq!(failure.category, ErrorCategory::HttpError, "{failure:?}");
    }

    #[test]
    fn what_an_agent_passes_on_keeps_its_category() {
        let report: ErrorReport = ProviderError::Provider("overloaded".to_owned()).report();
        let failure = failure_of(&PromptError::Report(report));
        assert_eq!(failure.category, ErrorCategory::HttpError, "{failure:?}");
        assert_eq!(failure.kind, "ProviderError");
    }
}
