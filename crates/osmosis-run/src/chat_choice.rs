//! What a config or the command line chooses about how a model is talked to: a chat template instead of the model's
//! own, and how tools are written into prompts.

use camino::Utf8Path;
use osmosis_core::config::{Experiment, SupervisedExperiment, ToolFormat};
use osmosis_tokens::{ChatSettings, TokensError, read_model_text};
use serde_json::{Value, json};

use crate::source_digest::text_digest;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error};

/// The choice, with the template's text read. The default leaves everything to the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatChoice {
    pub settings: ChatSettings,
    /// The template's file, as it was named.
    pub template_name: Option<String>,
}

impl ChatChoice {
    /// What `[experiment]` chooses; the template is a path from the workspace.
    pub fn of_experiment(experiment: &Experiment, workspace: &Workspace) -> Result<Self, RunError> {
        let template = experiment.chat_template.as_deref();
        Self::in_workspace(template, experiment.tool_format, workspace)
    }

    /// The same for supervised training.
    pub fn of_supervised(
        experiment: &SupervisedExperiment,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let template = experiment.chat_template.as_deref();
        Self::in_workspace(template, experiment.tool_format, workspace)
    }

    fn in_workspace(
        template: Option<&Utf8Path>,
        tool_format: Option<ToolFormat>,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let template = template.map(|name| (name, workspace.root.join(name)));
        let template = template.as_ref().map(|(name, path)| (*name, &**path));
        Self::read(template, tool_format)
            .map_err(|error| error.hint("`chat_template` is a path from the workspace"))
    }

    /// The same from a template as it was named, and where that is.
    pub fn read(
        template: Option<(&Utf8Path, &Utf8Path)>,
        tool_format: Option<ToolFormat>,
    ) -> Result<Self, RunError> {
        let Some((name, path)) = template else {
            return Ok(Self {
                settings: ChatSettings {
                    chat_template: None,
                    tool_format,
                },
                template_name: None,
            });
        };
        let text = read_model_text(path).map_err(|error| {
            let message = format!("chat_template `{name}`: {error}");
            if error.kind() == std::io::ErrorKind::NotFound {
                RunError::failed(RunErrorKind::FileNotFound, message)
            } else {
                io_error(path, &error).with_message(message)
            }
        })?;
        Ok(Self {
            settings: ChatSettings {
                chat_template: Some(text),
                tool_format,
            },
            template_name: Some(name.to_string()),
        })
    }

    /// The same from a template's name and text.
    pub fn of_text(template: Option<(String, &str)>, tool_format: Option<ToolFormat>) -> Self {
        let (template_name, chat_template) = template.unzip();
        Self {
            settings: ChatSettings {
                chat_template: chat_template.map(str::to_owned),
                tool_format,
            },
            template_name,
        }
    }

    /// Whether everything is left to the model.
    pub fn is_default(&self) -> bool {
        self.settings == ChatSettings::default()
    }

    /// Refuses a choice for a policy whose prompts are rendered elsewhere: it would change nothing.
    pub fn refuse_unless_default(&self, who_renders: &str) -> Result<(), RunError> {
        let key = match (&self.template_name, self.settings.tool_format) {
            (None, None) => return Ok(()),
            (Some(_), _) => "chat_template",
            (None, Some(_)) => "tool_format",
        };
        Err(RunError::failed(
            RunErrorKind::EngineUnusable,
            format!("`{key}` is set, and {who_renders}"),
        )
        .hint(
            "remove it; or have prompts rendered here: an embedded model, or vLLM or SGLang with \
             OSMOSIS_TOKENIZER (docs/gateway-tokens.md)",
        ))
    }

    /// Adds what a resume must find unchanged, beside what the model's own identity holds.
    pub fn pin(&self, identity: &mut Value) {
        if let Some(template) = &self.settings.chat_template {
            identity["chat_template_sha256"] = json!(text_digest(template));
        }
        if let Some(format) = self.settings.tool_format {
            identity["tool_format"] = json!(format.as_str());
        }
    }

    /// The template's file, when an error is about the template that was chosen.
    pub fn blamed_for(&self, error: &TokensError) -> Option<&str> {
        let of_template = matches!(
            error,
            TokensError::TemplateSyntax { .. } | TokensError::TemplateRefused { .. }
        );
        self.template_name.as_deref().filter(|_| of_template)
    }
}
