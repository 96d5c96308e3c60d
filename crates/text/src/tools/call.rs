//! Reads one call, `{"name": .., "arguments": {..}}`, a character at a time.
//!
//! The arguments are passed on as the model wrote them, not parsed and written again: a client
//! sees the exact text, and a fragment can be sent as soon as it has come.

use super::lexer::{Lexed, Lexer};

/// Where in the object the reader is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Open,
    KeyOrEnd,
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    CommaOrEnd,
}

/// What the value that is being read is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// What a character led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The call goes on.
    More,
    /// The call is complete with this character.
    Done,
    /// This character cannot be part of a call.
    Failed,
}

/// A reader of one call.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    at: At,
    field: Field,
    lexer: Lexer,
    /// Raw text of the key or value that is being read, where it is not passed on at once.
    raw: String,
    name: Option<String>,
    /// The value of the arguments has begun.
    begun: bool,
    /// Arguments that may be passed on.
    ready: String,
    /// There is no object around the arguments.
    bare: bool,
}

impl CallReader {
    pub(crate) fn new() -> CallReader {
        CallReader {
            at: At::Open,
            field: Field::Other,
            lexer: Lexer::Scalar,
            raw: String::new(),
            name: None,
            begun: false,
            ready: String::new(),
            bare: false,
        }
    }

    /// A reader of bare arguments, for formats that give the name outside.
    pub(crate) fn of_arguments(name: String) -> CallReader {
        CallReader {
            at: At::Value,
            field: Field::Arguments,
            name: Some(name),
            bare: true,
            ..CallReader::new()
        }
    }

    /// The function's name, once it has come whole.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// True once the value of the arguments has begun.
    pub(crate) fn has_arguments(&self) -> bool {
        self.begun
    }

    /// True where the reader is in the value of the arguments.
    pub(crate) fn is_in_arguments(&self) -> bool {
        self.field == Field::Arguments && self.at == At::InValue
    }

    /// Takes the arguments' text that has come since the last time.
    pub(crate) fn take_ready(&mut self) -> String {
        std::mem::take(&mut self.ready)
    }

    /// Takes the next character.
    pub(crate) fn step(&mut self, c: char) -> Step {
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        match self.at {
            At::InKey => self.in_key(c),
            At::InValue => self.in_value(c),
            _ if space => Step::More,
            At::Open if c == '{' => self.go(At::KeyOrEnd),
            At::KeyOrEnd | At::Key if c == '"' => {
                self.raw = c.into();
                self.lexer = Lexer::Text { escaped: false };
                self.go(At::InKey)
            }
            At::KeyOrEnd | At::CommaOrEnd if c == '}' => Step::Done,
            At::Colon if c == ':' => self.go(At::Value),
            At::CommaOrEnd if c == ',' => self.go(At::Key),
            At::Value => self.value(c),
            _ => Step::Failed,
        }
    }

    fn go(&mut self, at: At) -> Step {
        self.at = at;
        Step::More
    }

    fn in_key(&mut self, c: char) -> Step {
        self.raw.push(c);
        if self.lexer.step(c) == Lexed::Inside {
            return Step::More;
        }
        let Ok(key) = serde_json::from_str::<String>(&self.raw) else { return Step::Failed };
        self.field = match key.as_str() {
            "name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if !self.begun => Field::Arguments,
            _ => Field::Other,
        };
        self.go(At::Colon)
    }

    fn value(&mut self, c: char) -> Step {
        let Some(lexer) = Lexer::start(c) else { return Step::Failed };
        let wrong = match self.field {
            Field::Name => !matches!(lexer, Lexer::Text { .. }),
            Field::Arguments => self.bare && c != '{',
            Field::Other => false,
        };
        if wrong {
            return Step::Failed;
        }
        self.raw.clear();
        self.begun |= self.field == Field::Arguments;
        self.lexer = lexer;
        self.keep(c);
        self.go(At::InValue)
    }

    /// Puts a character of a value where it belongs.
    fn keep(&mut self, c: char) {
        match (self.field, &self.lexer) {
            (Field::Arguments, Lexer::Nested { .. }) => self.ready.push(c),
            (Field::Arguments | Field::Name, _) => self.raw.push(c),
            (Field::Other, _) => {}
        }
    }

    fn in_value(&mut self, c: char) -> Step {
        match self.lexer.step(c) {
            Lexed::Inside => {
                self.keep(c);
                Step::More
            }
            Lexed::Complete => {
                self.keep(c);
                self.end_of_value()
            }
            Lexed::Ended => match self.end_of_value() {
                Step::More => self.step(c),
                other => other,
            },
            Lexed::Bad => {
                self.keep(c);
                Step::Failed
            }
        }
    }

    fn end_of_value(&mut self) -> Step {
        let text = || serde_json::from_str::<String>(&self.raw).ok();
        match (self.field, &self.lexer) {
            (Field::Name, _) => match text().filter(|name| !name.is_empty()) {
                Some(name) => self.name = Some(name),
                None => return Step::Failed,
            },
            // Some models write the arguments as a string of JSON, as the API carries them.
            (Field::Arguments, Lexer::Text { .. }) => match text() {
                Some(text) => self.ready.push_str(&text),
                None => return Step::Failed,
            },
            (Field::Arguments, Lexer::Scalar) => {
                let none = self.raw == "null";
                self.ready.push_str(if none { "{}" } else { &self.raw });
            }
            _ => {}
        }
        if self.bare { Step::Done } else { self.go(At::CommaOrEnd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<String>, String, Step) {
        let mut r = CallReader::new();
        let mut step = Step::More;
        for c in text.chars() {
            step = r.step(c);
            if step != Step::More {
                break;
            }
        }
        (r.name().map(str::to_owned), r.take_ready(), step)
    }

    #[test]
    fn calls_as_models_write_them() {
        let ok = |args: &str| (Some("f".to_owned()), args.to_owned(), Step::Done);
        assert_eq!(
            read(r#"{"name": "f", "arguments": {"a": [1, "}"]}}"#),
            ok(r#"{"a": [1, "}"]}"#)
        );
        assert_eq!(read(r#"{"arguments":{"x":"\"{"},"name":"f"}"#), ok(r#"{"x":"\"{"}"#));
        assert_eq!(read(r#"{"type": "function", "name": "f", "parameters": null}"#), ok("{}"));
        assert_eq!(read(r#"{"id": 3, "name": "f", "arguments": "{\"a\": 1}"}"#), ok("{\"a\": 1}"));
        assert_eq!(read(r#"{"name": "f"}"#), ok(""));
        assert_eq!(read(r#"{"name": 3"#).2, Step::Failed);
        assert_eq!(read(r#"{"name": """#).2, Step::Failed);
        assert_eq!(read(r#"{"name": "f", "arguments": {]"#).2, Step::Failed);
        assert_eq!(read("{'name'").2, Step::Failed);
        assert_eq!(read(r#"{"name": "f", "arguments": {"#).2, Step::More);
    }
}
