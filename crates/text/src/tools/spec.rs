//! The tools of a request, checked.

use crate::TextError;
use crate::error::ToolProblem;
use serde_json::{Value, json};

/// Tools of a request, at most.
const TOOLS_MAX: usize = 128;

/// Whether the model may, must or must not call a tool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call, of any tool.
    Required,
    /// A call of this function.
    Function(String),
}

/// One function that the model may call.
#[derive(Clone, PartialEq, Debug)]
pub struct ToolSpec {
    /// 1 to 64 of `a-z A-Z 0-9 _ -`.
    pub name: String,
    /// The JSON schema of the arguments, always an object.
    pub parameters: Value,
    /// `strict` of the request: the arguments must follow the schema even where the model
    /// decides by itself to call.
    pub strict: bool,
}

/// The tools of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tools {
    /// In the order of the request; names are distinct.
    pub list: Vec<ToolSpec>,
}

impl Tools {
    /// Checks the `tools` of a request: an array of
    /// `{"type": "function", "function": {"name", "parameters", "strict"}}`.
    pub fn parse(tools: &Value) -> Result<Tools, TextError> {
        let bad = |index, problem| TextError::Tool { index, problem };
        let entries = tools.as_array().filter(|t| t.len() <= TOOLS_MAX);
        let entries = entries.ok_or(bad(0, ToolProblem::List))?;
        let mut list: Vec<ToolSpec> = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let function = &entry["function"];
            if entry["type"] != "function" || !function.is_object() {
                return Err(bad(index, ToolProblem::Shape));
            }
            let name = function["name"].as_str().filter(|n| is_name(n));
            let name = name.ok_or(bad(index, ToolProblem::Name))?.to_owned();
            if list.iter().any(|t| t.name == name) {
                return Err(bad(index, ToolProblem::Duplicate));
            }
            let parameters = match &function["parameters"] {
                Value::Null => json!({"type": "object", "properties": {}}),
                schema @ Value::Object(_) => schema.clone(),
                _ => return Err(bad(index, ToolProblem::Parameters)),
            };
            let strict = function["strict"].as_bool().unwrap_or(false);
            list.push(ToolSpec { name, parameters, strict });
        }
        Ok(Tools { list })
    }

    /// The names, in order.
    pub fn names(&self) -> Vec<String> {
        self.list.iter().map(|t| t.name.clone()).collect()
    }

    /// The tools that a choice allows.
    pub(crate) fn chosen(&self, choice: &ToolChoice) -> Result<Vec<&ToolSpec>, TextError> {
        match choice {
            ToolChoice::Function(name) => {
                let found = self.list.iter().find(|t| t.name == *name);
                Ok(vec![found.ok_or_else(|| TextError::UnknownTool { name: name.clone() })?])
            }
            ToolChoice::None => Ok(Vec::new()),
            _ if self.list.is_empty() => Err(TextError::NoTools),
            ToolChoice::Auto | ToolChoice::Required => Ok(self.list.iter().collect()),
        }
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_checked() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let ok = Tools::parse(&json!([tool("a"), tool("b-2")])).unwrap();
        assert_eq!(ok.names(), ["a", "b-2"]);
        assert_eq!(ok.list[0].parameters["type"], "object");
        let problem = |tools: Value| match Tools::parse(&tools) {
            Err(TextError::Tool { index, problem }) => (index, problem),
            other => panic!("{other:?}"),
        };
        assert_eq!(problem(json!({})), (0, ToolProblem::List));
        assert_eq!(problem(json!([tool("a"), 3])), (1, ToolProblem::Shape));
        assert_eq!(problem(json!([tool("a b")])), (0, ToolProblem::Name));
        assert_eq!(problem(json!([tool("a"), tool("a")])), (1, ToolProblem::Duplicate));
        let schema = json!([{"type": "function", "function": {"name": "a", "parameters": 3}}]);
        assert_eq!(problem(schema), (0, ToolProblem::Parameters));
        let missing = ok.chosen(&ToolChoice::Function("z".into()));
        assert_eq!(missing, Err(TextError::UnknownTool { name: "z".into() }));
        assert_eq!(Tools::default().chosen(&ToolChoice::Required), Err(TextError::NoTools));
    }
}
