//! Tools and output formats: what the model may call, and what its text must look like.

use crate::app::App;
use crate::choice::Finish;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::output::OutputParser;
use lockstep_flow::{Token, TokenMask};
use serde_json::Value;

/// What the text must look like.
#[derive(Clone, PartialEq, Debug)]
pub enum Format {
    /// Anything.
    Text,
}

impl Format {
    /// Takes `response_format`.
    pub fn take(_app: &App, fields: &mut Fields) -> Result<Format, ApiError> {
        fields.object("response_format")?;
        Ok(Format::Text)
    }

    /// A fresh grammar state.
    pub fn mask(&self, _app: &App) -> Result<Option<Box<dyn TokenMask>>, ApiError> {
        Ok(None)
    }
}

/// The tools of a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Tools {
    shown: Option<Value>,
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
    pub fn take(_app: &App, fields: &mut Fields) -> Result<Tools, ApiError> {
        Ok(Tools { shown: fields.take("tools") })
    }

    /// For the template.
    pub fn shown(&self) -> Option<&Value> {
        self.shown.as_ref()
    }

    /// A fresh grammar state of tools and format together.
    pub fn mask(&self, app: &App, format: &Format) -> Result<Option<Box<dyn TokenMask>>, ApiError> {
        format.mask(app)
    }

    /// A fresh parser.
    pub fn parser(&self, _app: &App) -> Result<OutputParser, ApiError> {
        Ok(OutputParser::Plain)
    }

    /// Special tokens that the parser has to see.
    pub fn keep(&self, _app: &App) -> Vec<Token> {
        Vec::new()
    }

    /// How a choice with calls ends.
    pub fn finish(&self) -> Finish {
        Finish::ToolCalls
    }
}
