//! What an answer's text must look like: `response_format`, and the names that vLLM's and
//! SGLang's clients have for the same thing.

use crate::error::ApiError;
use crate::fields::Fields;
use lockstep_text::GrammarSpec;
use serde_json::Value;

/// A demand on the text, and the field that it came from.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Format(Option<(&'static str, GrammarSpec)>);

impl Format {
    /// Takes every field that can make such a demand; at most one may.
    pub fn take(fields: &mut Fields) -> Result<Format, ApiError> {
        let all = [
            response_format(fields)?.map(|spec| ("response_format", spec)),
            schema(fields, "guided_json")?.map(|spec| ("guided_json", spec)),
            schema(fields, "json_schema")?.map(|spec| ("json_schema", spec)),
            fields.string("guided_regex")?.map(|r| ("guided_regex", GrammarSpec::Regex(r))),
            fields.string("regex")?.map(|r| ("regex", GrammarSpec::Regex(r))),
            choice(fields, "guided_choice")?.map(|spec| ("guided_choice", spec)),
            fields.string("guided_grammar")?.map(|g| ("guided_grammar", GrammarSpec::Lark(g))),
        ];
        let nested = structured_outputs(fields)?;
        let mut given = all.into_iter().flatten().chain(nested);
        let first = given.next();
        match (&first, given.next()) {
            (Some((one, _)), Some((two, _))) => {
                Err(ApiError::field(two, format!("cannot be given together with {one}")))
            }
            _ => Ok(Format(first)),
        }
    }

    /// The demand, with its field's name.
    pub fn spec(&self) -> Option<(&'static str, &GrammarSpec)> {
        self.0.as_ref().map(|(field, spec)| (*field, spec))
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<GrammarSpec>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.string("type")?;
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(GrammarSpec::JsonObject)),
        Some("json_schema") => {
            let missing = |field: &str| {
                Err(ApiError::field(format!("response_format.{field}"), "is missing"))
            };
            let Some(mut wrapped) = format.object("json_schema")? else {
                return missing("json_schema");
            };
            match wrapped.object("schema")? {
                Some(schema) => Ok(Some(GrammarSpec::JsonSchema(Value::Object(schema.into_map())))),
                None => missing("json_schema.schema"),
            }
        }
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            let what = format!("is '{other}'; it must be text, json_object or json_schema");
            Err(ApiError::field("response_format.type", what))
        }
        None => Err(ApiError::field("response_format.type", "is missing")),
    }
}

/// vLLM's newer form of the `guided_*` fields, as an object of one of them.
fn structured_outputs(fields: &mut Fields) -> Result<Vec<(&'static str, GrammarSpec)>, ApiError> {
    const NAME: &str = "structured_outputs";
    let Some(mut inner) = fields.object(NAME)? else { return Ok(Vec::new()) };
    for unknown in ["structural_tag", "whitespace_pattern"] {
        if inner.has(unknown) {
            let what = "is not supported here; send json, regex, choice, grammar or json_object";
            return Err(ApiError::parameter(inner.name(unknown), what));
        }
    }
    let any_object = inner.flag("json_object")?.unwrap_or(false);
    let all = [
        schema(&mut inner, "json")?,
        inner.string("regex")?.map(GrammarSpec::Regex),
        choice(&mut inner, "choice")?,
        inner.string("grammar")?.map(GrammarSpec::Lark),
        any_object.then_some(GrammarSpec::JsonObject),
    ];
    Ok(all.into_iter().flatten().map(|spec| (NAME, spec)).collect())
}

/// A schema as an object, or as its JSON text.
fn schema(fields: &mut Fields, field: &str) -> Result<Option<GrammarSpec>, ApiError> {
    let schema = match fields.take(field) {
        None => return Ok(None),
        Some(Value::String(text)) => crate::json::parse_object(text.as_bytes()).ok(),
        Some(Value::Object(map)) => Some(map),
        Some(_) => None,
    };
    match schema {
        Some(map) => Ok(Some(GrammarSpec::JsonSchema(Value::Object(map)))),
        None => {
            let what = "must be a JSON schema, as an object or as its text";
            Err(ApiError::field(fields.name(field), what))
        }
    }
}

/// One of some strings, as a regular expression.
fn choice(fields: &mut Fields, field: &str) -> Result<Option<GrammarSpec>, ApiError> {
    let Some(items) = fields.array(field)? else { return Ok(None) };
    let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
    if texts.len() != items.len() || texts.is_empty() || texts.contains(&"") {
        let what = "must be an array of strings, none of them empty";
        return Err(ApiError::field(fields.name(field), what));
    }
    let escaped: Vec<String> = texts.iter().map(|t| escape(t)).collect();
    Ok(Some(GrammarSpec::Regex(format!("({})", escaped.join("|")))))
}

/// A text as a regular expression that matches it alone.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~/".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<Format, ApiError> {
        match body {
            Value::Object(map) => Format::take(&mut Fields::new(map)),
            _ => panic!("an object"),
        }
    }

    #[test]
    fn every_spelling_is_understood() {
        let schema = json!({"type": "object"});
        let spec = |body: Value| take(body).unwrap().0.map(|(_, spec)| spec);
        assert_eq!(spec(json!({})), None);
        assert_eq!(spec(json!({"response_format": {"type": "text"}})), None);
        let object = json!({"response_format": {"type": "json_object"}});
        assert_eq!(spec(object), Some(GrammarSpec::JsonObject));
        let wrapped = json!({"response_format": {"type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": true}}});
        let want = Some(GrammarSpec::JsonSchema(schema.clone()));
        assert_eq!(spec(wrapped), want);
        assert_eq!(spec(json!({"guided_json": schema})), want);
        assert_eq!(spec(json!({"json_schema": schema.to_string()})), want);
        assert_eq!(spec(json!({"structured_outputs": {"json": schema}})), want);
        let any = json!({"structured_outputs": {"json_object": true}});
        assert_eq!(spec(any), Some(GrammarSpec::JsonObject));
        let choice = spec(json!({"guided_choice": ["a+b", "c"]}));
        assert_eq!(choice, Some(GrammarSpec::Regex(r"(a\+b|c)".into())));
    }

    #[test]
    fn mistakes_are_named() {
        for (param, body) in [
            ("response_format", json!({"response_format": "json"})),
            ("response_format.type", json!({"response_format": {}})),
            ("response_format.type", json!({"response_format": {"type": "xml"}})),
            ("response_format.json_schema", json!({"response_format": {"type": "json_schema"}})),
            (
                "response_format.json_schema.schema",
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            ),
            ("guided_json", json!({"guided_json": 5})),
            ("guided_choice", json!({"guided_choice": []})),
            ("structured_outputs.choice", json!({"structured_outputs": {"choice": [1]}})),
            ("structured_outputs.json", json!({"structured_outputs": {"json": true}})),
            (
                "structured_outputs.structural_tag",
                json!({"structured_outputs": {"structural_tag": "x"}}),
            ),
            (
                "structured_outputs",
                json!({"structured_outputs": {"json_object": true}, "regex": "a"}),
            ),
            ("regex", json!({"regex": "a", "response_format": {"type": "json_object"}})),
        ] {
            let e = take(body.clone()).unwrap_err();
            assert_eq!(e.to_json()["error"]["param"], param, "{body}");
        }
    }
}
