//! One key of `lockstep.toml`.

use super::fault::toml_fault;
use super::find::{own_from, spellings};
use super::{EditError, Edited, TomlValue, Wanted, word::line_of};
use toml_edit::{DocumentMut, Item, Table, Value, value};

/// Sets a dotted key; comments and blanks around an existing value stay.
pub fn set(text: &[u8], name: &str, new: &TomlValue) -> Result<Edited, EditError> {
    let toml = |what: String| EditError::Toml { what };
    let text = std::str::from_utf8(text).map_err(|e| toml(e.to_string()))?;
    let mut document: DocumentMut = text.parse().map_err(|e| toml(toml_fault(text, &e)))?;
    let (section, key) =
        name.split_once('.').ok_or_else(|| toml(format!("'{name}' has no section")))?;
    let root = document.as_table_mut();
    let table = root.entry(section).or_insert_with(|| Item::Table(Table::new()));
    let table =
        table.as_table_like_mut().ok_or_else(|| toml(format!("'{section}' is no table")))?;
    let was = table.get(key).map(|item| match item.as_value() {
        Some(Value::String(s)) => Ok(s.value().clone()),
        Some(v @ (Value::Integer(_) | Value::Boolean(_))) => {
            Ok(v.clone().decorated("", "").to_string())
        }
        _ => Err(toml(format!("'{name}' holds no plain value"))),
    });
    let was = was.transpose()?;
    let mut item = match new {
        TomlValue::Number(n) => value(i64::try_from(*n).unwrap_or(i64::MAX)),
        TomlValue::Flag(b) => value(*b),
        TomlValue::Text(t) => value(t.as_str()),
    };
    if let (Some(old), Some(new)) = (table.get(key).and_then(Item::as_value), item.as_value_mut()) {
        *new.decor_mut() = old.decor().clone();
    }
    match table.get_mut(key) {
        Some(place) => *place = item,
        None => {
            table.insert(key, item);
        }
    }
    Ok(edited(text, document.to_string(), was))
}

/// Sets a flag's value in `launch.command` of a target's file, a list of words.
pub fn set_command(text: &[u8], wanted: &Wanted<'_>, new: &str) -> Result<Edited, EditError> {
    let toml = |what: String| EditError::Toml { what };
    let text = std::str::from_utf8(text).map_err(|e| toml(e.to_string()))?;
    let mut document: DocumentMut = text.parse().map_err(|e| toml(toml_fault(text, &e)))?;
    let list = document.get_mut("launch").and_then(|l| l.get_mut("command"));
    let list = list.and_then(Item::as_array_mut);
    let list = list.ok_or_else(|| toml("launch.command is no list of words".into()))?;
    let words: Vec<String> =
        list.iter().map(|v| v.as_str().unwrap_or_default().to_owned()).collect();
    let (from, takes_short) = own_from(&words, wanted.program);
    let flags = spellings(wanted.spellings, takes_short);
    let attached = |w: &str| {
        flags
            .iter()
            .find(|f| {
                f.starts_with("--") && w.strip_prefix(**f).is_some_and(|r| r.starts_with('='))
            })
            .copied()
    };
    let places: Vec<usize> = (from..words.len())
        .filter(|i| flags.contains(&words[*i].as_str()) || attached(&words[*i]).is_some())
        .collect();
    let flag = || wanted.shown();
    let (at, word, was) = match places.as_slice() {
        [] => return Err(EditError::NotFound { flag: flag(), hidden_at: None }),
        [i] => match attached(&words[*i]) {
            Some(f) => (*i, format!("{f}={new}"), words[*i][f.len() + 1..].to_owned()),
            None => match words.get(i + 1).filter(|w| !w.starts_with("--")) {
                Some(was) => (i + 1, new.to_owned(), was.clone()),
                None => return Err(EditError::NoValue { flag: flag(), line: 1 }),
            },
        },
        several => {
            return Err(EditError::Repeated { flag: flag(), lines: vec![1; several.len()] });
        }
    };
    // The place's blanks and comments stay: only the word itself is another.
    if let Some(place) = list.get_mut(at) {
        let decor = place.decor().clone();
        *place = Value::from(word);
        *place.decor_mut() = decor;
    }
    Ok(edited(text, document.to_string(), Some(was)))
}

fn edited(old: &str, new: String, was: Option<String>) -> Edited {
    let (old, new) = (old.as_bytes(), new.into_bytes());
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = (old.len() - start).min(new.len() - start);
    let backwards = old.iter().rev().zip(new.iter().rev());
    let tail = backwards.take(room).take_while(|(a, b)| a == b).count();
    let changed = start..new.len() - tail;
    let line = line_of(&new, start);
    Edited { text: new, was, changed, line, variable: None }
}
