//! Chat templates are written against Python. What the template engine prints and serialises
//! differently from Python is here: `str`, `repr`, `json.dumps`, `strip`, `strftime`.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Nesting that printing follows; deeper values are an error, not a stack overflow.
const DEPTH_MAX: usize = 256;

/// The arguments of `json.dumps`. What is not given is Python's default, except that
/// `transformers` lets characters outside ASCII stand.
#[derive(Clone, Default)]
pub(crate) struct Dumps {
    pub(crate) indent: Option<usize>,
    pub(crate) sort_keys: bool,
    pub(crate) ensure_ascii: bool,
    /// Between items, and between key and value.
    pub(crate) separators: Option<(String, String)>,
}

impl Dumps {
    fn item_separator(&self) -> &str {
        match &self.separators {
            Some((item, _)) => item,
            None if self.indent.is_some() => ",",
            None => ", ",
        }
    }

    fn key_separator(&self) -> &str {
        self.separators.as_ref().map_or(": ", |(_, key)| key)
    }
}

/// Python's `json.dumps(value, ..)`.
pub(crate) fn dumps(value: &Value, how: &Dumps) -> Result<String, Error> {
    let mut out = String::new();
    dump(value, how, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, how: &Dumps, depth: usize, out: &mut String) -> Result<(), Error> {
    check(depth)?;
    let invalid = |what: &str| Error::new(ErrorKind::BadSerialization, what.to_owned());
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quote_json(value.as_str().unwrap_or_default(), how, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container(&items, ['[', ']'], how, depth, out, |item, out| {
                dump(item, how, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if how.sort_keys {
                keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
            container(&keys, ['{', '}'], how, depth, out, |key, out| {
                match key.as_str() {
                    Some(text) => quote_json(text, how, out),
                    None => quote_json(&str_of(key)?, how, out),
                }
                out.push_str(how.key_separator());
                dump(&value.get_item(key)?, how, depth + 1, out)
            })?;
        }
        ValueKind::Undefined => return Err(invalid("an undefined value is not JSON serializable")),
        _ => return Err(invalid("this value is not JSON serializable")),
    }
    Ok(())
}

fn container(
    items: &[Value],
    [open, close]: [char; 2],
    how: &Dumps,
    depth: usize,
    out: &mut String,
    mut item: impl FnMut(&Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let newline = |level: usize, out: &mut String| {
        if let Some(indent) = how.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', (indent * level).min(4096)));
        }
    };
    for (i, value) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(how.item_separator());
        }
        newline(depth + 1, out);
        item(value, out)?;
    }
    if !items.is_empty() {
        newline(depth, out);
    }
    out.push(close);
    Ok(())
}

fn check(depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply"));
    }
    Ok(())
}

fn quote_json(text: &str, how: &Dumps, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if how.ensure_ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python prints it: integers as they are, floats by `repr`.
fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    out.push_str(&float_repr(x));
}

/// Python's `repr(float)`: shortest digits, exponent form below 1e-4 and from 1e16.
fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// Python's `str(value)`, which is what `{{ value }}` prints.
pub(crate) fn str_of(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            repr(value, 0, &mut out)?;
            Ok(out)
        }
    }
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check(depth)?;
    let plain = &Dumps::default();
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quote_python(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container(&items, ['[', ']'], plain, depth, out, |v, out| repr(v, depth + 1, out))?;
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            container(&keys, ['{', '}'], plain, depth, out, |key, out| {
                repr(key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(key)?, depth + 1, out)
            })?;
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn quote_python(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Jinja's `is iterable`: whether Python's `iter` takes the value, as it does a string.
pub(crate) fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

/// Jinja's `is sequence`: whether the value has a length and can be indexed.
pub(crate) fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// Python's `str.isspace` for one character: Unicode white space and the four separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's string and container methods, where the engine has none of its own.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), []) = (value.as_str(), args) {
        match name {
            "strip" => return Ok(Value::from(text.trim_matches(is_space))),
            "lstrip" => return Ok(Value::from(text.trim_start_matches(is_space))),
            "rstrip" => return Ok(Value::from(text.trim_end_matches(is_space))),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `strftime` of a time in UTC, for the directives that templates use.
pub(crate) fn strftime(format: &str, unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day, day_of_year) = civil(days);
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let weekday = DAYS[(days % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let hour = second / 3600;
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let _ = match chars.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('j') => write!(out, "{day_of_year:03}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{hour12:02}"),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(out, "{:02}", second / 60 % 60),
            Some('S') => write!(out, "{:02}", second % 60),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{:02}:{:02}", second / 60 % 60, second % 60),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

/// Year, month, day of the month and of the year (from 1) of a day since 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64, u64) {
    // A cycle of 400 years has 146,097 days; whole cycles first keeps the loop short.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = days + 1;
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;

    #[test]
    fn json_as_python_writes_it() {
        let v = serde_json::json!({
            "b": [1, 2.5, 1e16, 1e-5, 100.0, -0.0, true, null],
            "a": {"ü": "<|x|>\u{1}\n\"\\/\u{7f}"},
            "e": [], "f": {},
        });
        let v = Value::from(Serde(&v));
        assert_eq!(
            dumps(&v, &Dumps::default()).unwrap(),
            "{\"b\": [1, 2.5, 1e+16, 1e-05, 100.0, -0.0, true, null], \
             \"a\": {\"ü\": \"<|x|>\\u0001\\n\\\"\\\\/\u{7f}\"}, \"e\": [], \"f\": {}}"
        );
        let how = Dumps { indent: Some(2), sort_keys: true, ..Dumps::default() };
        let small = Value::from(Serde(&serde_json::json!({"b": [1], "a": {}})));
        assert_eq!(dumps(&small, &how).unwrap(), "{\n  \"a\": {},\n  \"b\": [\n    1\n  ]\n}");
    }

    #[test]
    fn json_in_ascii_and_with_separators() {
        let how = Dumps {
            ensure_ascii: true,
            separators: Some((",".into(), ":".into())),
            ..Dumps::default()
        };
        let v = Value::from(Serde(&serde_json::json!({"é": ["😀", 1]})));
        assert_eq!(dumps(&v, &how).unwrap(), "{\"\\u00e9\":[\"\\ud83d\\ude00\",1]}");
    }

    #[test]
    fn str_as_python_prints_it() {
        let v = serde_json::json!({"a": [true, null, "it's", "x\n"], "b": 1.0});
        let v = Value::from(Serde(&v));
        assert_eq!(str_of(&v).unwrap(), r#"{'a': [True, None, "it's", 'x\n'], 'b': 1.0}"#);
        assert_eq!(str_of(&Value::UNDEFINED).unwrap(), "");
    }

    #[test]
    fn dates() {
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(
            strftime("%A %d %B %Y %j %H:%M:%S", 1_709_251_199),
            "Thursday 29 February 2024 060 23:59:59"
        );
        assert_eq!(strftime("%F %T %a %e %I %p", 951_782_400), "2000-02-29 00:00:00 Tue 29 12 AM");
        assert_eq!(strftime("%d %b %Y", 4_107_542_400), "01 Mar 2100");
    }
}
