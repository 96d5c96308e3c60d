//! Another worker behind the same router.

use super::text;
use crate::address;
use toml_edit::{ArrayOfTables, Item, Table, TableLike, Value};

/// Where a worker is, and what it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    /// Its address.
    pub url: String,
    /// One of [`Worker::ROLES`], where that is known.
    pub role: Option<String>,
}

impl Worker {
    /// What workers do: one side of a request, or all of it.
    pub const ROLES: [&str; 3] = ["prefill", "decode", "regular"];
}

/// `[[workers]]`, or a list of inline tables.
pub(super) fn read(item: &Item) -> Result<Vec<Worker>, String> {
    let wrong = || "workers takes tables with url and role ([[workers]])".to_owned();
    match item {
        Item::ArrayOfTables(all) => all.iter().map(|t| one(t)).collect(),
        Item::Value(Value::Array(all)) => {
            all.iter().map(|v| one(v.as_inline_table().ok_or_else(wrong)?)).collect()
        }
        _ => Err(wrong()),
    }
}

fn one(table: &dyn TableLike) -> Result<Worker, String> {
    if let Some((key, _)) = table.iter().find(|(key, _)| !["url", "role"].contains(key)) {
        return Err(format!("'workers.{key}' is no key of a target"));
    }
    let url = table.get("url").ok_or("workers.url is missing")?;
    let role = table.get("role").map(|r| text("workers.role", r)).transpose()?;
    if let Some(role) = role.as_ref().filter(|r| !Worker::ROLES.contains(&r.as_str())) {
        let all = Worker::ROLES.join(", ");
        return Err(format!("workers.role is '{role}'; it takes {all}"));
    }
    let url = text("workers.url", url)?;
    if address::port(&url).is_none() {
        return Err("workers.url takes the address of a worker (http://HOST:PORT)".into());
    }
    Ok(Worker { url, role })
}

/// As `[[workers]]`.
pub(super) fn tables(workers: &[Worker]) -> Item {
    let mut all = ArrayOfTables::new();
    for worker in workers {
        let mut table = Table::new();
        table["url"] = toml_edit::value(&worker.url);
        if let Some(role) = &worker.role {
            table["role"] = toml_edit::value(role);
        }
        all.push(table);
    }
    Item::ArrayOfTables(all)
}
