use std::error::Error as StdError;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use osmosis_core::ErrorCategory;

use super::http::{no_client, shared_client};
use crate::{SdkError, WorkflowContext};

impl<C> WorkflowContext<C> {
    /// A client for the model calls of one sample. The model is [`crate::POLICY_MODEL`].
    ///
    /// ```no_run
    /// # use osmosis_sdk::{POLICY_MODEL, Result, WorkflowContext, WorkflowOutput};
    /// # use serde_json::{Value, json};
    /// use async_openai::types::chat::CreateChatCompletionRequestArgs;
    ///
    /// # async fn run(ctx: &WorkflowContext) -> Result<WorkflowOutput> {
    /// let request = CreateChatCompletionRequestArgs::default()
    ///     .model(POLICY_MODEL)
    ///     .messages(ctx.prompt_as()?)
    ///     .build()?;
    /// let reply = ctx.openai_client("main")?.chat().create(request).await?;
    ///
    /// let mut messages = ctx.prompt().to_vec();
    /// messages.push(serde_json::to_value(&reply.choices[0].message)?);
    /// Ok(messages.into())
    /// # }
    /// ```
    pub fn openai_client(&self, sample: &str) -> Result<Client<OpenAIConfig>, SdkError> {
        let endpoint = self.endpoint(sample)?;
        let mut config = OpenAIConfig::new()
            .with_api_base(&endpoint.base_url)
            .with_api_key(&endpoint.api_key)
            // Not those of the environment, which belong to another account.
            .with_org_id("")
            .with_project_id("");
        for (name, value) in &endpoint.headers {
            config = config
                .with_header(*name, value.as_str())
                .map_err(|error| no_client(&endpoint, &error))?;
        }
        Ok(Client::build(shared_client(&endpoint)?, config))
    }
}

pub(super) fn category_of(error: &(dyn StdError + 'static)) -> Option<ErrorCategory> {
    match error.downcast_ref::<OpenAIError>()? {
        OpenAIError::InvalidArgument(_) => Some(ErrorCategory::ValidationError),
        OpenAIError::FileSaveError(_) | OpenAIError::FileReadError(_) => None,
        OpenAIError::Reqwest(_)
        | OpenAIError::ApiError(_)
        | OpenAIError::JSONDeserialize(..)
        | OpenAIError::StreamError(_) => Some(ErrorCategory::HttpError),
    }
}

#[cfg(test)]
mod tests {
    use async_openai::types::chat::CreateChatCompletionRequestArgs;

    use super::*;
    use crate::clients::test_server::{check_identity, context, serve_one_call};
    use crate::failure::failure_of;
    use crate::{Error, POLICY_MODEL};

    async fn ask(ctx: &WorkflowContext, sample: &str) -> Result<Option<String>, Error> {
        let request = CreateChatCompletionRequestArgs::default()
            .model(POLICY_MODEL)
            .messages(ctx.prompt_as()?)
            .build()?;
        let reply = ctx.openai_client(sample)?.chat().create(request).await?;
        Ok(reply.choices[0].message.content.clone())
    }

    #[tokio::test]
    async fn a_call_goes_to_chat_completions_and_says_whose_it_is() {
        let (url, request) = serve_one_call();
        let reply = ask(&context(&url), "50% agent ✓").await.unwrap();
        assert_eq!(reply.as_deref(), Some("forty-two"));
        check_identity(&request.join().unwrap());
    }

    #[tokio::test]
    async fn an_error_of_the_gateway_is_an_http_error() {
        let ctx = context("http://127.0.0.1:1/v1");
        let failure = failure_of(&*ask(&ctx, "main").await.unwrap_err());
        assert_eq!(failure.category, ErrorCategory::HttpError, "{failure:?}");
    }
}
